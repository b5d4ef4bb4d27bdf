"""The steps of a sequence: each makes a request for a broker's world and learns from the answer."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from millstream.protocol import records
from millstream.protocol.messages import APIS
from millstream.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest
from millstream.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.protocol.messages.describe_groups import DescribeGroupsRequest
from millstream.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.heartbeat import HeartbeatRequest
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.differential.world import NOW, World

Step = tuple[str, dict[str, Any]]
TOPICS = st.sampled_from([0, 0, 0, 1, 2])
PARTITIONS = st.sampled_from([0, 0, 0, 0, 1, 2, -1])
PRODUCERS = st.sampled_from([0, 0, 0, 1])
GROUPS = st.sampled_from([0, 0, 0, 1])
SETTINGS = st.sampled_from(
    [
        ("retention.ms", "86400000"), ("retention.ms", "x"), ("cleanup.policy", "compact"), ("cleanup.policy", "both"),
        ("cleanup.policy", "compact,delete"), ("max.message.bytes", "2000"), ("max.message.bytes", "-5"),
        ("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "Never"), ("segment.bytes", "1048576"),
        ("min.insync.replicas", "1"), ("no.such.setting", "1"), ("compression.type", "producer"), ("retention.bytes", ""),
        ("min.cleanable.dirty.ratio", "0.3"), ("min.cleanable.dirty.ratio", "3"), ("delete.retention.ms", " 5 "),
        ("message.timestamp.after.max.ms", "1000"), ("unclean.leader.election.enable", "maybe"), ("flush.ms", "9999999999999999999"),
    ]
)  # fmt: skip
BATCHES = st.sampled_from(
    ["good", "good", "good", "gzip", "three", "idempotent", "idempotent", "again", "gap", "old epoch", "new epoch",
     "transactional", "transactional", "crc", "short", "long", "magic", "count", "delta", "none", "empty", "two", "large", "future", "no key"]
)  # fmt: skip


def batch(world: World, p: dict[str, Any], name: str) -> tuple[bytes | None, bool]:
    """The bytes of a produce step, and whether they are in a transaction."""
    kind, slot = p["batch"], p["producer"]
    seed = random.Random(p["seed"])
    messages = [(b"k%d" % seed.randrange(3), b"v%d" % seed.randrange(1000)) for _ in range(3 if kind == "three" else 1)]
    timestamp = NOW + seed.randrange(10_000)
    if kind == "none":
        return None, False
    if kind == "empty":
        return b"", False
    if kind == "large":
        messages = [(None, b"x" * 3000)]
    if kind == "no key":
        messages = [(None, b"v")]
    if kind == "future":
        timestamp = 4_000_000_000_000
    if kind in ("idempotent", "again", "gap", "old epoch", "new epoch", "transactional"):
        pid, epoch = world.producers.get(slot, (987_654, 0))
        sequence = world.sequences.get((slot, name, p["partition"]), 0)
        if kind == "again":
            sequence = max(0, sequence - 1)
        if kind == "gap":
            sequence += 5
        epoch += {"old epoch": -1, "new epoch": 1}.get(kind, 0)
        made = records.build(
            messages, timestamp, producer_id=pid, producer_epoch=max(epoch, 0), base_sequence=sequence,
            transactional=kind == "transactional",
        )  # fmt: skip
        return bytes(made), kind == "transactional"
    made = records.build(messages, timestamp, codec=1 if kind == "gzip" else 0)
    if kind == "crc":
        made[-1] ^= 1
    elif kind == "short":
        made = made[:-3]
    elif kind == "long":
        made = made + b"\0\0\0"
    elif kind == "magic":
        made[16] = 1
    elif kind == "count":
        made[57:61] = (5).to_bytes(4, "big")
        records.seal(made)
    elif kind == "delta":
        made[23:27] = (9).to_bytes(4, "big")
        records.seal(made)
    elif kind == "two":
        made = made + made
    return bytes(made), False


# ---- each kind of step: (world, parameters) -> (request, version, what to learn from the answer)

Learn = Callable[[Any], None] | None
Made = tuple[Any, int, Learn]


def create(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])
    configs = [CreatableTopicConfig(*pair) for pair in p["settings"]]
    request = CreateTopicsRequest([CreatableTopic(name, p["count"], p["factor"], [], configs)], 5000, p["only"])

    def learn(answer: Any) -> None:
        if not answer.topics[0].error_code and not p["only"]:
            world.settle_topics({name: answer.topics[0].num_partitions})

    return request, 7, learn


def delete(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])

    def learn(answer: Any) -> None:
        if not answer.responses[0].error_code:
            world.settle_topics({name: 0})

    return DeleteTopicsRequest(topic_names=[name], timeout_ms=5000), 5, learn


def grow(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])

    def learn(answer: Any) -> None:
        if not answer.results[0].error_code:
            world.settle_topics({name: p["count"]})

    return CreatePartitionsRequest([CreatePartitionsTopic(name, p["count"], None)], 5000, False), 3, learn


def metadata(world: World, p: dict[str, Any]) -> Made:
    return MetadataRequest([MetadataRequestTopic(name=world.name("t", p["topic"]))], False), p["version"], None


def configure(world: World, p: dict[str, Any]) -> Made:
    configs = [AlterableConfig(name, op, value if op != 1 else None) for (name, value), op in p["changes"]]
    resource = AlterConfigsResource(2, world.name("t", p["topic"]), configs)
    return IncrementalAlterConfigsRequest([resource], p["only"]), 1, None


def settings(world: World, p: dict[str, Any]) -> Made:
    return DescribeConfigsRequest([DescribeConfigsResource(2, world.name("t", p["topic"]), ["retention.ms"])]), 4, None


def produce(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])
    data, transactional = batch(world, p, name)
    topic = TopicProduceData(name, bytes(16), [PartitionProduceData(p["partition"], data)])
    transactional_id = world.name("x", p["producer"]) if transactional else None

    def learn(answer: Any) -> None:
        code = answer.responses[0].partition_responses[0].error_code
        if not code and p["batch"] in ("idempotent", "transactional"):
            key = (p["producer"], name, p["partition"])
            world.sequences[key] = world.sequences.get(key, 0) + 1

    return ProduceRequest(transactional_id, p["acks"], 2000, [topic]), p["version"], learn


def fetch(world: World, p: dict[str, Any]) -> Made:
    part = FetchPartition(p["partition"], fetch_offset=p["offset"], partition_max_bytes=p["size"])
    topic = FetchTopic(world.name("t", p["topic"]), partitions=[part])
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000_000,
        isolation_level=p["isolation"],
        session_epoch=-1,
        topics=[topic],
    )
    return request, p["version"], None


def offsets(world: World, p: dict[str, Any]) -> Made:
    part = ListOffsetsPartition(p["partition"], timestamp=p["time"])
    topic = ListOffsetsTopic(world.name("t", p["topic"]), [part])
    return (
        ListOffsetsRequest(isolation_level=p["isolation"] if p["version"] >= 2 else 0, topics=[topic]),
        p["version"],
        None,
    )


def delete_records(world: World, p: dict[str, Any]) -> Made:
    topic = DeleteRecordsTopic(world.name("t", p["topic"]), [DeleteRecordsPartition(p["partition"], p["offset"])])
    return DeleteRecordsRequest([topic], 2000), 2, None


def epochs(world: World, p: dict[str, Any]) -> Made:
    part = OffsetForLeaderPartition(p["partition"], p["current"], p["epoch"])
    return OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(world.name("t", p["topic"]), [part])]), 4, None


def init(world: World, p: dict[str, Any]) -> Made:
    slot = p["producer"]
    transactional_id = world.name("x", slot) if p["transactional"] else None

    def learn(answer: Any) -> None:
        if not answer.error_code:
            world.producers[slot] = (answer.producer_id, answer.producer_epoch)
            for key in [k for k in world.sequences if k[0] == slot]:
                del world.sequences[key]
        if transactional_id:
            world.settle_transaction(transactional_id)

    return InitProducerIdRequest(transactional_id, p["timeout"]), 4, learn


def _producer(world: World, p: dict[str, Any]) -> tuple[int, int]:
    pid, epoch = world.producers.get(p["producer"], (987_654, 0))
    return pid, max(0, epoch + p["epoch"])


def add_partitions(world: World, p: dict[str, Any]) -> Made:
    pid, epoch = _producer(world, p)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=world.name("x", p["producer"]),
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(world.name("t", p["topic"]), [max(0, p["partition"])])],
    )
    return request, 3, None


def add_offsets(world: World, p: dict[str, Any]) -> Made:
    request = AddOffsetsToTxnRequest(world.name("x", p["producer"]), *_producer(world, p), world.name("g", p["group"]))
    return request, 3, None


def commit_in_transaction(world: World, p: dict[str, Any]) -> Made:
    topic = TxnOffsetCommitRequestTopic(
        world.name("t", p["topic"]), partitions=[TxnOffsetCommitRequestPartition(p["partition"], p["offset"], -1, "m")]
    )
    pid, epoch = _producer(world, p)
    request = TxnOffsetCommitRequest(
        world.name("x", p["producer"]), world.name("g", p["group"]), pid, epoch, topics=[topic]
    )
    return request, 3, None


def end(world: World, p: dict[str, Any]) -> Made:
    transactional_id = world.name("x", p["producer"])
    return (
        EndTxnRequest(transactional_id, *_producer(world, p), p["commit"]), 3,
        lambda _: world.settle_transaction(transactional_id),
    )  # fmt: skip


def transaction(world: World, p: dict[str, Any]) -> Made:
    return DescribeTransactionsRequest([world.name("x", p["producer"])]), 0, None


def producers(world: World, p: dict[str, Any]) -> Made:
    return DescribeProducersRequest([TopicRequest(world.name("t", p["topic"]), [p["partition"]])]), 0, None


def _member(world: World, p: dict[str, Any]) -> tuple[str, str, int]:
    group = world.name("g", p["group"])
    member = {"mine": world.members.get(group, ""), "none": "", "other": "nobody"}[p["who"]]
    return group, member, world.generations.get(group, -1) + p["generation"]


def join(world: World, p: dict[str, Any]) -> Made:
    group, member, _ = _member(world, p)
    protocols = [JoinGroupRequestProtocol(name, b"\0\x01\0\0\0\0\0\0\0\0") for name in p["protocols"]]
    request = JoinGroupRequest(group, p["session"], 60_000, member, None, p["type"], protocols)

    def learn(answer: Any) -> None:
        if answer.error_code in (0, 79):
            world.members[group] = answer.member_id
        if not answer.error_code:
            world.generations[group] = answer.generation_id

    return request, 5, learn


def sync(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = _member(world, p)
    mine = [SyncGroupRequestAssignment(member, b"assigned")]
    return SyncGroupRequest(group, generation, member, assignments=mine), 3, None


def heartbeat(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = _member(world, p)
    return HeartbeatRequest(group, generation, member), 3, None


def leave(world: World, p: dict[str, Any]) -> Made:
    group, member, _ = _member(world, p)
    return LeaveGroupRequest(group, members=[MemberIdentity(member)]), 4, None


def commit(world: World, p: dict[str, Any]) -> Made:
    group, member, generation = _member(world, p)
    if p["outside"]:
        member, generation = "", -1
    part = OffsetCommitRequestPartition(p["partition"], p["offset"], committed_metadata=p["metadata"])
    topic = OffsetCommitRequestTopic(world.name("t", p["topic"]), partitions=[part])
    return OffsetCommitRequest(group, generation, member, topics=[topic]), 8, None


def committed(world: World, p: dict[str, Any]) -> Made:
    asked = None
    if not p["all"]:
        asked = [OffsetFetchRequestTopics(world.name("t", p["topic"]), partition_indexes=[0, p["partition"]])]
    group = OffsetFetchRequestGroup(world.name("g", p["group"]), None, -1, asked)
    return OffsetFetchRequest(groups=[group], require_stable=p["stable"]), 8, None


def describe_group(world: World, p: dict[str, Any]) -> Made:
    return DescribeGroupsRequest([world.name("g", p["group"])]), p["version"], None


def delete_group(world: World, p: dict[str, Any]) -> Made:
    return DeleteGroupsRequest([world.name("g", p["group"])]), 2, None


def delete_offsets(world: World, p: dict[str, Any]) -> Made:
    topic = OffsetDeleteRequestTopic(world.name("t", p["topic"]), [OffsetDeleteRequestPartition(p["partition"])])
    return OffsetDeleteRequest(world.name("g", p["group"]), [topic]), 0, None


def garbage(world: World, p: dict[str, Any]) -> bool:
    """A request that cannot be read; whether it is answered."""
    return world.raw(p["key"], p["version"], p["body"])


MEMBER = {
    "group": GROUPS, "who": st.sampled_from(["mine"] * 6 + ["none", "other"]), "generation": st.sampled_from([0] * 6 + [-1, 1]),
}  # fmt: skip
PRODUCER = {"producer": PRODUCERS, "epoch": st.sampled_from([0] * 6 + [-1, 1])}
PLACE = {"topic": TOPICS, "partition": PARTITIONS}
OFFSETS = st.sampled_from([0, 0, 1, 2, 3, 7, -1, -2, 1 << 40])
SOME = st.booleans()
# How often a step comes, its function, its parameters.
STEPS: dict[str, tuple[int, Callable[..., Any], dict[str, Any]]] = {
    "create": (2, create, {
        "topic": st.sampled_from([1, 1, 2, 0]), "count": st.sampled_from([1, 2, -1, 0, -2]), "factor": st.sampled_from([1, 1, -1, 0, 3]),
        "settings": st.lists(SETTINGS, max_size=2, unique_by=lambda pair: pair[0]), "only": st.sampled_from([False, False, True]),
    }),
    "delete": (1, delete, {"topic": TOPICS}),
    "grow": (1, grow, {"topic": TOPICS, "count": st.sampled_from([1, 2, 3, 4, 0])}),
    "metadata": (1, metadata, {"topic": TOPICS, "version": st.sampled_from([4, 7, 9, 12])}),
    "configure": (2, configure, {
        "topic": TOPICS, "only": SOME,
        "changes": st.lists(st.tuples(SETTINGS, st.sampled_from([0, 0, 0, 1, 2, 3])), min_size=1, max_size=2),
    }),
    "settings": (1, settings, {"topic": TOPICS}),
    "produce": (8, produce, {
        **PLACE, "batch": BATCHES, "producer": PRODUCERS, "seed": st.integers(0, 99), "acks": st.sampled_from([-1, -1, 1, 2]),
        "version": st.sampled_from([3, 5, 8, 9, 11]),
    }),
    "fetch": (5, fetch, {
        **PLACE, "offset": OFFSETS, "isolation": st.sampled_from([0, 1]), "size": st.sampled_from([1, 200, 100_000]),
        "version": st.sampled_from([4, 6, 9, 11, 12]),
    }),
    "offsets": (4, offsets, {
        **PLACE, "time": st.sampled_from([-1, -2, -3, -4, -5, -7, 0, NOW, NOW + 5000, NOW + 9_999, 1 << 50]),
        "isolation": st.sampled_from([0, 1]), "version": st.sampled_from([1, 2, 4, 6, 7, 8, 9]),
    }),
    "delete records": (1, delete_records, {**PLACE, "offset": OFFSETS}),
    "epochs": (1, epochs, {**PLACE, "current": st.sampled_from([-1, 0, 1]), "epoch": st.sampled_from([0, 1, -1])}),
    "init": (3, init, {"producer": PRODUCERS, "transactional": st.sampled_from([True, True, False]), "timeout": st.sampled_from([60_000, 60_000, 0, 99_999_999])}),
    "add partitions": (3, add_partitions, {**PLACE, **PRODUCER}),
    "add offsets": (1, add_offsets, {**PRODUCER, "group": GROUPS}),
    "commit in transaction": (2, commit_in_transaction, {**PLACE, **PRODUCER, "group": GROUPS, "offset": st.sampled_from([0, 5])}),
    "end": (3, end, {**PRODUCER, "commit": SOME}),
    "transaction": (1, transaction, {"producer": PRODUCERS}),
    "producers": (1, producers, {**PLACE}),
    "join": (4, join, {
        **MEMBER, "session": st.sampled_from([120_000] * 6 + [1, 99_999_999]), "type": st.sampled_from(["consumer"] * 5 + ["other", ""]),
        "protocols": st.sampled_from([["range"]] * 5 + [["range", "roundrobin"], ["x"], []]),
    }),
    "sync": (3, sync, MEMBER),
    "heartbeat": (1, heartbeat, MEMBER),
    "leave": (1, leave, MEMBER),
    "commit": (3, commit, {**PLACE, **MEMBER, "outside": SOME, "offset": st.sampled_from([0, 5, -1]), "metadata": st.sampled_from([None, "", "m", "x" * 5000])}),
    "committed": (2, committed, {**PLACE, "group": GROUPS, "all": SOME, "stable": SOME}),
    "describe group": (1, describe_group, {"group": GROUPS, "version": st.sampled_from([4, 5, 6])}),
    "delete group": (1, delete_group, {"group": GROUPS}),
    "delete offsets": (1, delete_offsets, {**PLACE, "group": GROUPS}),
    "garbage": (1, garbage, {
        "key": st.sampled_from([0, 1, 2, 3, 8, 10, 11, 19, 32]), "version": st.just(9), "body": st.binary(max_size=40),
    }),
}  # fmt: skip
for _name, (_, _, _parameters) in STEPS.items():
    assert _name != "garbage" or all(k in APIS for k in (0, 1, 2, 3, 8, 10, 11, 19, 32))


def step() -> st.SearchStrategy[Step]:
    """One step with its parameters."""
    names = [name for name, (weight, _, _) in STEPS.items() for _ in range(weight)]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name][2])))


def play(world: World, made: Step) -> Any:
    """Do a step; its normal answer."""
    name, parameters = made
    function = STEPS[name][1]
    if name == "garbage":
        return function(world, parameters)
    request, version, learn = function(world, parameters)
    answer = world.ask(request, version)
    if isinstance(answer, str):
        return answer
    if learn is not None:
        learn(answer)
    return world.normal(answer)
