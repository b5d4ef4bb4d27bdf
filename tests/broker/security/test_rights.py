"""Rights and quotas on a running broker: who may do what by every API, and how long clients wait."""

import time

import pytest

from millstream.broker.apis import APIS
from millstream.protocol import errors
from millstream.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from millstream.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from millstream.protocol.messages.list_groups import ListGroupsRequest
from millstream.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from millstream.protocol.messages.sasl_handshake import SaslHandshakeRequest
from millstream.protocol.records import build
from tests.broker.serving import Process
from tests.broker.wire import Wire

NOW = 1_700_000_000_000
T, G, C, X = (
    errors.TOPIC_AUTHORIZATION_FAILED,
    errors.GROUP_AUTHORIZATION_FAILED,
    errors.CLUSTER_AUTHORIZATION_FAILED,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def login(address, user):
    wire = Wire(address, f"client-of-{user}")
    assert wire.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    assert wire.ask(SaslAuthenticateRequest(f"\0{user}\0{user}".encode()), 2).error_code == 0
    return wire


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    settings = (STANDARD, "super.users=User:root;User:boss", "sasl.enabled.mechanisms=PLAIN")
    process = Process(tmp_path_factory.mktemp("guarded") / "data", *settings)
    process.address = "SASL_PLAINTEXT://127.0.0.1:0"
    process.environment = {name.upper(): name for name in ("root", "alice", "carol", "mallory")}
    process.more = [
        f"--add-scram=SCRAM-SHA-256=[name={n},password=env:{n.upper()}]" for n in ("root", "alice", "carol", "mallory")
    ]
    with process, login(process.address, "root") as root:
        made = root.ask(create_topics.CreateTopicsRequest([create_topics.CreatableTopic("t", 1, 1)], 5000), 7)
        assert made.topics[0].error_code == 0
        process.id = made.topics[0].topic_id
        yield process


def produce_to(name, topic_id=bytes(16), transactional_id=None, count=1, size=10):
    inside = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    batch = build([(None, b"x" * size)] * count, NOW, **(inside if transactional_id else {}))
    data = produce.TopicProduceData(name, topic_id, [produce.PartitionProduceData(0, batch)])
    return produce.ProduceRequest(transactional_id, -1, 1000, [data])


def requests(topic_id):
    """A request of each API that needs rights, its version, where the error stands, the error without them."""
    m = {}
    m["produce"] = produce_to("t"), 9, lambda r: r.responses[0].partition_responses[0].error_code, T
    m["produce by id"] = produce_to("", topic_id), 13, lambda r: r.responses[0].partition_responses[0].error_code, T
    m["produce to nothing"] = produce_to("no"), 9, lambda r: r.responses[0].partition_responses[0].error_code, T
    m["transactional"] = (
        produce_to("t", transactional_id="x"),
        9,
        lambda r: r.responses[0].partition_responses[0].error_code,
        X,
    )
    part = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
    request = fetch.FetchRequest(max_bytes=1000, topics=[fetch.FetchTopic("t", partitions=[part])])
    m["fetch"] = request, 12, lambda r: r.responses[0].partitions[0].error_code, T
    request = fetch.FetchRequest(max_bytes=1000, topics=[fetch.FetchTopic(topic_id=topic_id, partitions=[part])])
    m["fetch by id"] = request, 13, lambda r: r.responses[0].partitions[0].error_code, T
    wanted = [list_offsets.ListOffsetsTopic("t", [list_offsets.ListOffsetsPartition(0, timestamp=-1)])]
    m["offsets"] = list_offsets.ListOffsetsRequest(topics=wanted), 7, lambda r: r.topics[0].partitions[0].error_code, T
    asked = [metadata.MetadataRequestTopic(name="t")]
    m["metadata"] = metadata.MetadataRequest(asked), 12, lambda r: r.topics[0].error_code, T
    asked = [metadata.MetadataRequestTopic(topic_id=topic_id, name=None)]
    m["metadata by id"] = metadata.MetadataRequest(asked), 12, lambda r: r.topics[0].error_code, T
    asked = [offset_commit.OffsetCommitRequestTopic("t", partitions=[offset_commit.OffsetCommitRequestPartition(0, 1)])]
    request = offset_commit.OffsetCommitRequest("g", topics=asked)
    m["commit"] = request, 8, lambda r: r.topics[0].partitions[0].error_code, G
    request = offset_fetch.OffsetFetchRequest(groups=[offset_fetch.OffsetFetchRequestGroup("g", topics=None)])
    m["committed"] = request, 8, lambda r: r.groups[0].error_code, G
    m["coordinator"] = find_coordinator.FindCoordinatorRequest("g", 0), 3, lambda r: r.error_code, G
    m["coordinators"] = (
        find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), 4, lambda r: r.coordinators[0].error_code, X,
    )  # fmt: skip
    m["join"] = join_group.JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer"), 5, lambda r: r.error_code, G
    m["heartbeat"] = heartbeat.HeartbeatRequest("g", 1, "m"), 3, lambda r: r.error_code, G
    m["leave"] = leave_group.LeaveGroupRequest("g"), 4, lambda r: r.error_code, G
    m["sync"] = sync_group.SyncGroupRequest("g", 1, "m"), 3, lambda r: r.error_code, G
    m["describe group"] = describe_groups.DescribeGroupsRequest(["g"]), 5, lambda r: r.groups[0].error_code, G
    asked = [create_topics.CreatableTopic("n", 1, 1)]
    m["create topic"] = create_topics.CreateTopicsRequest(asked, 1000), 7, lambda r: r.topics[0].error_code, T
    m["delete topic"] = delete_topics.DeleteTopicsRequest(topic_names=["t"]), 5, lambda r: r.responses[0].error_code, T
    asked = [delete_records.DeleteRecordsTopic("t", [delete_records.DeleteRecordsPartition(0, 0)])]
    m["delete records"] = (
        delete_records.DeleteRecordsRequest(asked, 1000),
        2,
        lambda r: r.topics[0].partitions[0].error_code,
        T,
    )
    m["producer id"] = init_producer_id.InitProducerIdRequest(None, 1000), 4, lambda r: r.error_code, C
    m["transactional producer id"] = init_producer_id.InitProducerIdRequest("x", 1000), 4, lambda r: r.error_code, X
    asked = [offset_for_leader_epoch.OffsetForLeaderTopic("t", [offset_for_leader_epoch.OffsetForLeaderPartition(0)])]
    m["epochs"] = (
        offset_for_leader_epoch.OffsetForLeaderEpochRequest(-1, asked),
        4,
        lambda r: r.topics[0].partitions[0].error_code,
        T,
    )
    asked = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]
    request = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_topics=asked
    )
    m["add"] = request, 3, lambda r: r.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, X
    m["add, by a broker"] = add_partitions_to_txn.AddPartitionsToTxnRequest(), 5, lambda r: r.error_code, C
    m["add offsets"] = add_offsets_to_txn.AddOffsetsToTxnRequest("x", 1, 0, "g"), 3, lambda r: r.error_code, X
    m["end"] = end_txn.EndTxnRequest("x", 1, 0, True), 3, lambda r: r.error_code, X
    marker = write_txn_markers.WritableTxnMarker(1, 0, False, [write_txn_markers.WritableTxnMarkerTopic("t", [0])])
    m["markers"] = (
        write_txn_markers.WriteTxnMarkersRequest([marker]), 1, lambda r: r.markers[0].topics[0].partitions[0].error_code, C,
    )  # fmt: skip
    asked = [
        txn_offset_commit.TxnOffsetCommitRequestTopic(
            "t", partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1)]
        )
    ]
    request = txn_offset_commit.TxnOffsetCommitRequest("x", "g", 1, 0, topics=asked)
    m["transactional commit"] = request, 3, lambda r: r.topics[0].partitions[0].error_code, X
    m["acls"] = describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3, lambda r: r.error_code, C
    entry = create_acls.AclCreation(2, "t", 3, "User:mallory", "*", 2, 3)
    m["create acl"] = create_acls.CreateAclsRequest([entry]), 3, lambda r: r.results[0].error_code, C
    entry = delete_acls.DeleteAclsFilter(1, None, 1, None, None, 1, 1)
    m["delete acl"] = delete_acls.DeleteAclsRequest([entry]), 3, lambda r: r.filter_results[0].error_code, C
    for name, kind, resource, error in (("topic", 2, "t", T), ("broker", 4, "0", C), ("group", 32, "g", G)):
        asked = [describe_configs.DescribeConfigsResource(kind, resource, None)]
        m[f"settings of a {name}"] = (
            describe_configs.DescribeConfigsRequest(asked),
            4,
            lambda r: r.results[0].error_code,
            error,
        )
        asked = [incremental_alter_configs.AlterConfigsResource(kind, resource, [])]
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(asked)
        m[f"change a {name}"] = request, 1, lambda r: r.responses[0].error_code, error
        asked = [alter_configs.AlterConfigsResource(kind, resource, [])]
        m[f"replace a {name}"] = alter_configs.AlterConfigsRequest(asked), 2, lambda r: r.responses[0].error_code, error
    asked = [create_partitions.CreatePartitionsTopic("t", 2, None)]
    m["more partitions"] = (
        create_partitions.CreatePartitionsRequest(asked, 1000),
        3,
        lambda r: r.results[0].error_code,
        T,
    )
    m["delete group"] = delete_groups.DeleteGroupsRequest(["g"]), 2, lambda r: r.results[0].error_code, G
    m["delete offsets"] = offset_delete.OffsetDeleteRequest("g", []), 0, lambda r: r.error_code, G
    m["quotas"] = describe_client_quotas.DescribeClientQuotasRequest(), 1, lambda r: r.error_code, C
    entry = alter_client_quotas.AlterClientQuotasRequestEntryData(
        [alter_client_quotas.AlterClientQuotasRequestEntityData("user", "u")], []
    )
    m["set quotas"] = alter_client_quotas.AlterClientQuotasRequest([entry]), 1, lambda r: r.entries[0].error_code, C
    m["users"] = DescribeUserScramCredentialsRequest(None), 0, lambda r: r.error_code, C
    entry = alter_user_scram_credentials.ScramCredentialUpsertion("mallory", 1, 4096, b"s", b"p" * 32)
    m["set users"] = (
        alter_user_scram_credentials.AlterUserScramCredentialsRequest([], [entry]), 0, lambda r: r.results[0].error_code, C,
    )  # fmt: skip
    asked = [describe_producers.TopicRequest("t", [0])]
    m["producers"] = (
        describe_producers.DescribeProducersRequest(asked),
        0,
        lambda r: r.topics[0].partitions[0].error_code,
        T,
    )
    m["transactions"] = (
        describe_transactions.DescribeTransactionsRequest(["x"]), 0, lambda r: r.transaction_states[0].error_code, X,
    )  # fmt: skip
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest("g", "m", 0)
    m["consumer heartbeat"] = request, 1, lambda r: r.error_code, G
    m["consumer group"] = (
        consumer_group_describe.ConsumerGroupDescribeRequest(["g"]),
        0,
        lambda r: r.groups[0].error_code,
        G,
    )
    m["share heartbeat"] = share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0), 1, lambda r: r.error_code, G
    m["share group"] = (
        share_group_describe.ShareGroupDescribeRequest(["g"]), 1, lambda r: r.groups[0].error_code, G,
    )  # fmt: skip
    m["share fetch"] = share_fetch.ShareFetchRequest("g", "m", 0), 2, lambda r: r.error_code, G
    m["share acknowledge"] = share_acknowledge.ShareAcknowledgeRequest("g", "m", 1), 2, lambda r: r.error_code, G
    m["share offsets"] = (
        describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("g", None)]
        ), 1, lambda r: r.groups[0].error_code, G,
    )  # fmt: skip
    request = alter_share_group_offsets.AlterShareGroupOffsetsRequest("g")
    m["alter share offsets"] = request, 0, lambda r: r.error_code, G
    request = delete_share_group_offsets.DeleteShareGroupOffsetsRequest("g")
    m["delete share offsets"] = request, 0, lambda r: r.error_code, G
    asked = [describe_topic_partitions.TopicRequest("t")]
    m["partitions"] = (
        describe_topic_partitions.DescribeTopicPartitionsRequest(asked),
        0,
        lambda r: r.topics[0].error_code,
        T,
    )
    for key, where in (
        (35, "error_code"),
        (43, "error_code"),
        (45, "error_code"),
        (46, "error_code"),
        (55, "error_code"),
        (74, "error_code"),
    ):
        m[APIS[key].name] = (
            APIS[key].load() and APIS[key].request(),
            APIS[key].last,
            lambda r, where=where: getattr(r, where),
            C,
        )
    return m


NAMES = list(requests(bytes(16)))


@pytest.mark.parametrize("name", NAMES)
def test_without_rights(guarded, name):
    request, version, where, error = requests(guarded.id)[name]
    with login(guarded.address, "mallory") as mallory:
        assert where(mallory.ask(request, version)) == error


def test_every_api_that_needs_rights_is_tested():
    free = {18, 17, 36, 16, 34, 60, 66}  # and lists that only leave out, tested below
    tested = {r.API_KEY for r, *_ in requests(bytes(16)).values()}
    assert set(APIS) - free <= tested


def grant(root, *entries):
    made = root.ask(create_acls.CreateAclsRequest([create_acls.AclCreation(*e) for e in entries]), 3)
    assert [r.error_code for r in made.results] == [0] * len(entries)


def test_rights_open_what_they_name_and_nothing_else(guarded):
    with login(guarded.address, "root") as root, login(guarded.address, "alice") as alice:
        grant(root, (2, "t", 3, "User:alice", "*", 4, 3), (3, "team-", 4, "User:alice", "127.0.0.1", 3, 3))
        assert alice.ask(produce_to("t"), 9).responses[0].partition_responses[0].error_code == 0
        assert alice.ask(init_producer_id.InitProducerIdRequest(None, 1000), 4).error_code == 0
        assert [t.name for t in alice.ask(metadata.MetadataRequest(None), 12).topics] == ["t"]  # WRITE implies DESCRIBE
        part = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1000)
        request = fetch.FetchRequest(max_bytes=1000, topics=[fetch.FetchTopic("t", partitions=[part])])
        assert alice.ask(request, 12).responses[0].partitions[0].error_code == T
        asked = [
            offset_commit.OffsetCommitRequestTopic("t", partitions=[offset_commit.OffsetCommitRequestPartition(0, 1)])
        ]
        for group, code in (("team-a", T), ("tea", G)):  # the group is hers, reading the topic is not
            answer = alice.ask(offset_commit.OffsetCommitRequest(group, topics=asked), 8)
            assert answer.topics[0].partitions[0].error_code == code
        grant(root, (2, "t", 3, "User:*", "*", 3, 3))
        assert alice.ask(request, 12).responses[0].partitions[0].error_code == 0
        assert (
            alice.ask(offset_commit.OffsetCommitRequest("team-a", topics=asked), 8).topics[0].partitions[0].error_code
            == 0
        )
        assert (
            root.ask(offset_commit.OffsetCommitRequest("secret", topics=asked), 8).topics[0].partitions[0].error_code
            == 0
        )
        assert [g.group_id for g in alice.ask(ListGroupsRequest(), 5).groups] == ["team-a"]
        assert len(root.ask(ListGroupsRequest(), 5).groups) == 2
        grant(root, (2, "*", 3, "User:alice", "*", 2, 2))  # deny everything
        assert alice.ask(request, 12).responses[0].partitions[0].error_code == T
        assert alice.ask(metadata.MetadataRequest(None), 12).topics == []


def test_a_share_of_a_topic_needs_the_topic(guarded):
    with login(guarded.address, "root") as root, login(guarded.address, "carol") as carol:
        made = root.ask(create_topics.CreateTopicsRequest([create_topics.CreatableTopic("work", 1, 1)], 5000), 7)
        work = made.topics[0].topic_id
        grant(root, (3, "share", 3, "User:carol", "*", 3, 3), (2, "work", 3, "User:carol", "*", 8, 3))
        beat = share_group_heartbeat.ShareGroupHeartbeatRequest("share", "m", 0, None, ["work"])
        assert carol.ask(beat, 1).error_code == 0
        request = share_fetch.ShareFetchRequest("share", "m", 0, max_bytes=1000, max_records=10)
        request.topics = [share_fetch.FetchTopic(work, [share_fetch.FetchPartition(0)])]
        assert carol.ask(request, 2).responses[0].partitions[0].error_code == T
        acks = [share_acknowledge.AcknowledgePartition(0, [share_acknowledge.AcknowledgementBatch(0, 0, [1])])]
        said = share_acknowledge.ShareAcknowledgeRequest("share", "m", 1)
        said.topics = [share_acknowledge.AcknowledgeTopic(work, acks)]
        assert carol.ask(said, 2).responses[0].partitions[0].error_code == T
        grant(root, (2, "work", 3, "User:carol", "*", 3, 3))
        request.share_session_epoch = 2
        assert carol.ask(request, 2).error_code == 0
        alter = alter_share_group_offsets.AlterShareGroupOffsetsRequest(
            "share",
            [
                alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                    "no", [alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        )
        assert carol.ask(share_group_heartbeat.ShareGroupHeartbeatRequest("share", "m", -1), 1).error_code == 0
        assert carol.ask(alter, 0).responses[0].partitions[0].error_code == T


def test_access_survives_a_restart(guarded):
    with login(guarded.address, "root") as root:
        before = root.ask(describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3).resources
        assert before
    guarded.end()
    guarded.address, guarded.more = guarded.address.replace("SASL_PLAINTEXT://", ""), []
    guarded.address = f"SASL_PLAINTEXT://{guarded.address}"
    guarded.start()
    with login(guarded.address, "root") as root:
        assert root.ask(describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1), 3).resources == before


def limit(wire, kind, name, **limits):
    ops = [alter_client_quotas.OpData(key, float(value)) for key, value in limits.items()]
    entity = [alter_client_quotas.AlterClientQuotasRequestEntityData(kind, name)]
    made = wire.ask(
        alter_client_quotas.AlterClientQuotasRequest(
            [alter_client_quotas.AlterClientQuotasRequestEntryData(entity, ops)]
        ),
        1,
    )
    return made.entries[0].error_code


@pytest.mark.system
def test_quotas_on_a_running_broker(tmp_path):
    settings = ("quota.window.num=2", "quota.window.size.seconds=1")
    with Process(tmp_path / "data", *settings) as process, Wire(process.address, "admin") as admin:
        admin.ask(create_topics.CreateTopicsRequest([create_topics.CreatableTopic("t", 1, 1)], 5000), 7)
        assert limit(admin, "client-id", "slow", producer_byte_rate=10_000, consumer_byte_rate=10_000) == 0
        assert limit(admin, "client-id", "slow", connection_creation_rate=1) == errors.INVALID_REQUEST
        assert limit(admin, "ip", "127.0.0.1", producer_byte_rate=1) == errors.INVALID_REQUEST
        found = admin.ask(describe_client_quotas.DescribeClientQuotasRequest(), 1).entries
        assert [(e.entity_type, e.entity_name) for e in found[0].entity] == [("client-id", "slow")]
        assert {v.key: v.value for v in found[0].values} == {
            "producer_byte_rate": 10_000.0,
            "consumer_byte_rate": 10_000.0,
        }
        with Wire(process.address, "slow") as slow, Wire(process.address, "quick") as quick:
            assert quick.ask(produce_to("t", size=15_000), 9).throttle_time_ms == 0
            start = time.monotonic()
            wait = slow.ask(produce_to("t", size=15_000), 9).throttle_time_ms
            assert time.monotonic() - start < 0.4  # the answer comes at once
            assert 300 <= wait <= 1000
            assert slow.ask(metadata.MetadataRequest(None), 12).brokers  # and then it is not heard for so long
            assert time.monotonic() - start >= wait / 1000 - 0.01
            part = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000_000)
            request = fetch.FetchRequest(max_bytes=1_000_000, topics=[fetch.FetchTopic("t", partitions=[part])])
            answer = slow.ask(request, 12)
            assert len(answer.responses[0].partitions[0].records) > 15_000  # more than a burst, and yet not stuck
            assert answer.throttle_time_ms > 0
            answer = slow.ask(request, 12)
            assert quick.ask(request, 12).throttle_time_ms == 0
        assert limit(admin, "client-id", "slow") == 0
    with Process(process.folder) as process, Wire(process.address, "admin") as admin:
        assert admin.ask(describe_client_quotas.DescribeClientQuotasRequest(), 1).entries == found
