"""What docs/limits.md says is left out answers as the page says; every row of its first table has a test here or names one."""

import re
import struct
from pathlib import Path

import pytest

from millstream.broker.settings import Settings, SettingsError
from millstream.protocol import errors
from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.wire import Wire

ROOT = Path(__file__).parent.parent.parent
# Rows of the page, by how they begin, and their tests: here, or FILE::TEST.
ROWS = {
    "Replication, followers": "test_there_is_one_broker",
    "Listening beyond loopback": "tests/broker/security/test_listener.py::test_what_would_be_unsafe_is_refused",
    "GSSAPI, OAUTHBEARER": "tests/broker/security/test_listener.py::test_the_order_of_requests_is_kafkas",
    "JKS and PKCS#12": "test_settings_that_cannot_be",
    "Quotas of host names": "tests/broker/security/test_quotas.py::test_entities",
    "Dead-letter queues": "test_share_groups_have_no_dead_letter_queue",
    "Requests between brokers": "test_apis_that_are_not_announced",
    "Smaller deliveries": "tests/broker/share/test_workers.py::test_a_batch_comes_back_as_it_is",
    "Streams groups": "test_apis_that_are_not_announced",
    "Rack-aware": "tests/broker/groups/test_assignors.py",
    "Two-phase commit": "test_apis_that_are_not_announced",
    "Client telemetry": "test_apis_that_are_not_announced",
    "Feature updates, controllers": "test_the_broker_is_the_only_voter",
    "Partitions that are not `commit`": "tests/torture/outage.py",
    "Transactions that touch no `commit` topic": "tests/torture/power.py",
    "Changing every setting of the broker": "test_most_of_the_brokers_settings_stay",
    "Message formats": "test_old_message_formats",
    "Compressed batches that unpack": "tests/broker/test_compressed.py::test_a_bomb",
    "Batches whose records are not numbered": "tests/log/test_validation.py::test_what_is_no_records",
    "Compressed data that clients read": "tests/protocol/test_compression.py::test_lz4_that_some_clients_cannot_read",
    "More than 1,000 records": "tests/log/test_validation.py::test_not_more_are_named_than_is_useful",
    "Tiered storage": "test_settings_of_topics_that_cannot_be",
    "Regular expressions": "test_regular_expressions_that_might_take_long",
}


def test_every_row_has_a_test():
    table = (ROOT / "docs" / "limits.md").read_text().partition("## The broker")[2].partition("Differences that")[0]
    rows = [row for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) if row not in ("left out", "---")]
    assert rows
    for row in rows:
        assert any(row.startswith(begins) for begins in ROWS), f"no test is named for: {row}"
    for begins, where in ROWS.items():
        file, _, test = where.rpartition("::") if "::" in where else ("", "", where)
        if where.endswith(".py"):
            file, test = where, ""
        text = (ROOT / file if file else Path(__file__)).read_text()
        assert not test or f"def {test}(" in text, f"{begins}: {where} is not there"


@pytest.fixture
def wire(broker):
    with Wire(broker.address) as opened:
        yield opened


def create(wire, name, partitions=1, replicas=1, assignments=(), **configs):
    configs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topic = CreatableTopic(name, partitions, replicas, list(assignments), configs)
    return wire.ask(CreateTopicsRequest([topic], 5000), 7).topics[0].error_code


def test_there_is_one_broker(wire):
    assert create(wire, "three", replicas=3) == errors.INVALID_REPLICATION_FACTOR
    elsewhere = [CreatableReplicaAssignment(0, [1])]
    assert create(wire, "there", -1, -1, elsewhere) == errors.INVALID_REPLICA_ASSIGNMENT
    assert create(wire, "one") == 0
    asked = OffsetForLeaderEpochRequest(
        -1, [OffsetForLeaderTopic("one", [OffsetForLeaderPartition(0, leader_epoch=0)])]
    )
    [part] = wire.ask(asked).topics[0].partitions
    assert (part.leader_epoch, part.end_offset) == (0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ssl.keystore.type", "JKS"), ("ssl.truststore.type", "PKCS12"), ("default.replication.factor", "3"),
     ("sasl.enabled.mechanisms", "GSSAPI"), ("sasl.enabled.mechanisms", "OAUTHBEARER")],
)  # fmt: skip
def test_settings_that_cannot_be(name, value):
    with pytest.raises(SettingsError, match=name):
        Settings({name: value})


def test_share_groups_have_no_dead_letter_queue(wire):
    change = AlterableConfig("errors.deadletterqueue.topic.name", 0, "dlq.work")
    asked = IncrementalAlterConfigsRequest([AlterConfigsResource(32, "g", [change])])
    assert wire.ask(asked).responses[0].error_code == errors.INVALID_CONFIG


def test_apis_that_are_not_announced(wire, broker):
    announced = {api.api_key: api.max_version for api in wire.ask(ApiVersionsRequest("a", "1"), 4).api_keys}
    for key in (38, 39, 40, 41, 57, 70, 71, 72, 83, 84, 85, 86, 87, 88, 89):
        assert key not in announced
        with Wire(broker.address) as other:  # and who asks nevertheless is cut off
            other.socket.sendall(struct.pack(">ihhih", 10, key, 0, 1, -1))
            assert other.closed()
    assert announced[22] == 5  # InitProducerId 6 is two-phase commit


def test_the_broker_is_the_only_voter(wire):
    asked = DescribeQuorumRequest(
        [DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])]
    )
    [told] = wire.ask(asked).topics[0].partitions
    assert told.leader_id == 0
    assert [voter.replica_id for voter in told.current_voters] == [0]


def test_most_of_the_brokers_settings_stay(wire):
    def change(name, value):
        resource = AlterConfigsResource(4, "0", [AlterableConfig(name, 0, value)])
        return wire.ask(IncrementalAlterConfigsRequest([resource], True)).responses[0].error_code

    assert change("max.connections", "100") == 0
    assert change("num.partitions", "3") == errors.INVALID_REQUEST
    assert change("no.such.setting", "3") in (errors.INVALID_REQUEST, errors.INVALID_CONFIG)


def test_old_message_formats(wire, broker):
    assert create(wire, "old") == 0
    message = struct.pack(">bbqii", 1, 0, 0, -1, 1) + b"v"  # format 1: magic, attributes, timestamp, key, value
    batch = struct.pack(">qiI", 0, 4 + len(message), 0) + message
    request = ProduceRequest(None, -1, 1000, [TopicProduceData("old", bytes(16), [PartitionProduceData(0, batch)])])
    assert wire.ask(request, 9).responses[0].partition_responses[0].error_code == errors.INVALID_RECORD
    with Wire(broker.address) as other:
        other.send(MetadataRequest(None), 12)
        assert other.receive(MetadataRequest(None), 12).brokers
        other.socket.sendall(struct.pack(">ihhihhii", 20, 0, 2, 1, -1, -1, 1000, 0))
        assert other.closed()
    assert "Produce" in broker.log.read_text()


def test_settings_of_topics_that_cannot_be(wire):
    assert create(wire, "brotli", compression_type="brotli") == errors.INVALID_CONFIG
    assert create(wire, "remote", remote_storage_enable="true") == errors.INVALID_CONFIG


@pytest.mark.parametrize("regex", [r"(a)\1", "a(?=b)", "(a+)+b", "(a*)*"])
def test_regular_expressions_that_might_take_long(wire, regex):
    beat = ConsumerGroupHeartbeatRequest("regex", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_regex=regex)
    beat.topic_partitions = []
    assert wire.ask(beat, 1).error_code == errors.INVALID_REGULAR_EXPRESSION
