"""Steps on records: produced well and badly, fetched with and without a session, found by time, deleted."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
import random
from typing import Any

from hypothesis import strategies as st

from millstream.protocol import records
from millstream.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from millstream.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.batches import packed
from tests.differential.steps.making import OFFSETS, PLACE, PRODUCERS, SOME, TOPICS, Kind, Made
from tests.differential.world import NOW, World

BATCHES = st.sampled_from(
    [
        "good",
        "good",
        "good",
        "gzip",
        "three",
        "idempotent",
        "idempotent",
        "again",
        "gap",
        "old epoch",
        "new epoch",
        "transactional",
        "transactional",
        "crc",
        "short",
        "long",
        "magic",
        "count",
        "delta",
        "none",
        "empty",
        "two",
        "large",
        "future",
        "no key",
        "control",
        "unnamed",
        "codec",
        "negative",
        "order",
        "packed",
        "packed",
        "packed",
        "mixed",
        "mixed",
        "numbers",
    ]
)
CODECS = st.sampled_from([1, 2, 3, 4])
INSIDES = st.sampled_from(
    ["good", "good", "garbage", "nothing", "no payload", "cut", "half", "no records", "zeros", "more", "fewer", "late", "early",
     "future", "body", "value", "headers", "trailing", "stamped"]
)  # fmt: skip
PRODUCED = ("idempotent", "again", "gap", "old epoch", "new epoch", "transactional", "unnamed")
BY_ID = 13


def batch(world: World, p: dict[str, Any], name: str) -> tuple[bytes | None, bool]:
    """The bytes of a produce step, and whether its request names the transaction."""
    kind, slot = p["batch"], p["producer"]
    seed = random.Random(p["seed"])
    messages = [(b"k%d" % seed.randrange(3), b"v%d" % seed.randrange(1000)) for _ in range(3 if kind == "three" else 1)]
    timestamp = NOW + seed.randrange(10_000)
    if kind in ("none", "empty"):
        return None if kind == "none" else b"", False
    if kind == "large":
        messages = [(None, b"x" * 3000)]
    if kind == "no key":
        messages = [(None, b"v")]
    if kind == "future":
        timestamp = 4_000_000_000_000
    if kind in PRODUCED:
        pid, epoch = world.producers.get(slot, (987_654, 0))
        sequence = world.sequences.get((slot, name, p["partition"]), 0)
        sequence = max(0, sequence - 1) if kind == "again" else sequence + 5 * (kind == "gap")
        epoch += {"old epoch": -1, "new epoch": 1}.get(kind, 0)
        made = records.build(
            messages, timestamp, producer_id=pid, producer_epoch=max(epoch, 0), base_sequence=sequence,
            transactional=kind in ("transactional", "unnamed"),
        )  # fmt: skip
        return bytes(made), kind == "transactional"
    if kind == "mixed":  # of four records two, one, or none without a key, and one that is too young or not
        keys = [None if seed.random() < 0.4 else b"k" for _ in range(4)]
        stamps = [4_000_000_000_000 if seed.random() < 0.2 else NOW for _ in range(4)]
        return bytes(records.build([(key, b"v") for key in keys], stamps, codec=p["codec"] * seed.randrange(2))), False
    if kind in ("packed", "numbers"):
        return packed(
            p["codec"] if kind == "packed" else 0, "numbers" if kind == "numbers" else p["inside"], NOW
        ), False
    made = records.build(messages, timestamp, codec=1 if kind == "gzip" else 0)
    if kind == "crc":
        made[-1] ^= 1
    elif kind == "short":
        made = made[:-3]
    elif kind == "long":
        made = made + b"\0\0\0"
    elif kind == "magic":
        made[16] = 1
    elif kind == "two":
        made = made + made
    elif kind == "control":
        made = bytearray(records.build_marker(1, 0, commit=True, coordinator_epoch=0, timestamp=timestamp))
    else:
        at, value = {
            "count": (57, (5).to_bytes(4, "big")), "delta": (23, (9).to_bytes(4, "big")), "codec": (22, b"\x07"),
            "negative": (27, (-5).to_bytes(8, "big", signed=True)), "order": (35, (7).to_bytes(8, "big")),
        }.get(kind, (0, b""))  # fmt: skip
        made[at : at + len(value)] = value
        records.seal(made)
    return bytes(made), False


def produce(world: World, p: dict[str, Any]) -> Any:
    name = world.name("t", p["topic"])
    data, transactional = batch(world, p, name)
    if p["version"] >= BY_ID:
        topic = TopicProduceData(
            "", world.topic_ids.get(name, bytes(15) + b"\1"), [PartitionProduceData(p["partition"], data)]
        )
    else:
        topic = TopicProduceData(name, bytes(16), [PartitionProduceData(p["partition"], data)])
    transactional_id = world.name("x", p["producer"]) if transactional else None

    def learn(answer: Any) -> None:
        code = answer.responses[0].partition_responses[0].error_code
        if not code and p["batch"] in ("idempotent", "transactional"):
            key = (p["producer"], name, p["partition"])
            world.sequences[key] = world.sequences.get(key, 0) + 1

    return Made(ProduceRequest(transactional_id, p["acks"], 2000, [topic]), p["version"], learn)


def quietly(world: World, p: dict[str, Any]) -> Any:
    """Produce without an answer (acks 0): what is wrong closes the connection."""
    name = world.name("t", p["topic"])
    data, _ = batch(world, {**p, "producer": 0, "codec": 1, "inside": "garbage"}, name)
    topic = TopicProduceData(name, bytes(16), [PartitionProduceData(p["partition"], data)])
    return world.tell(ProduceRequest(None, 0, 2000, [topic]), 9)


def fetch(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])
    part = FetchPartition(p["partition"], p["leader"], p["offset"], partition_max_bytes=p["size"])
    topic = FetchTopic(name, partitions=[part])
    if p["version"] >= BY_ID:
        topic = FetchTopic("", world.topic_ids.get(name, bytes(15) + b"\1"), [part])
    return Made(_fetch(p["isolation"], [topic], -1), p["version"])


def fetch_both(world: World, p: dict[str, Any]) -> Made:
    """Two partitions in one answer of a bounded size."""
    parts = [FetchPartition(index, fetch_offset=p["offset"], partition_max_bytes=p["size"]) for index in p["order"]]
    request = _fetch(p["isolation"], [FetchTopic(world.name("t", 0), partitions=parts)], -1)
    request.max_bytes = p["limit"]
    return Made(request, 11)


def fetch_in_session(world: World, p: dict[str, Any]) -> Made:
    """KIP-227: begin a session, go on with it, change it, get its number wrong, end it."""
    session, epoch = world.session
    topics: list[FetchTopic] = []
    request = _fetch(p["isolation"], topics, epoch)
    request.session_id = session
    if p["kind"] in ("begin", "change"):
        part = FetchPartition(p["partition"], fetch_offset=p["offset"], partition_max_bytes=p["size"])
        topics.append(FetchTopic(world.name("t", p["topic"]), partitions=[part]))
    if p["kind"] == "begin":
        request.session_id, request.session_epoch = (session if p["again"] else 0), 0
    elif p["kind"] == "forget":
        request.forgotten_topics_data = [ForgottenTopic(world.name("t", p["topic"]), partitions=[p["partition"]])]
    elif p["kind"] == "wrong epoch":
        request.session_epoch = epoch + 5
    elif p["kind"] == "unknown":
        request.session_id = 7
    elif p["kind"] == "end":
        request.session_epoch = -1

    def learn(answer: Any) -> None:
        if p["kind"] == "begin" and not answer.error_code:
            world.session = (answer.session_id, 1)
        elif p["kind"] in ("go on", "change", "forget") and not answer.error_code:
            world.session = (session, epoch + 1)

    return Made(request, 12, learn)


def _fetch(isolation: int, topics: list[FetchTopic], epoch: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1_000_000, isolation_level=isolation, session_epoch=epoch, topics=topics
    )


def offsets(world: World, p: dict[str, Any]) -> Made:
    part = ListOffsetsPartition(p["partition"], p["leader"], p["time"])
    topic = ListOffsetsTopic(world.name("t", p["topic"]), [part])
    isolation = p["isolation"] if p["version"] >= 2 else 0
    return Made(ListOffsetsRequest(isolation_level=isolation, topics=[topic]), p["version"])


def offsets_twice(world: World, p: dict[str, Any]) -> Made:
    parts = [ListOffsetsPartition(p["partition"], -1, -1), ListOffsetsPartition(p["partition"], -1, -2)]
    return Made(ListOffsetsRequest(topics=[ListOffsetsTopic(world.name("t", p["topic"]), parts)]), 7)


def delete_records(world: World, p: dict[str, Any]) -> Made:
    topic = DeleteRecordsTopic(world.name("t", p["topic"]), [DeleteRecordsPartition(p["partition"], p["offset"])])
    return Made(DeleteRecordsRequest([topic], 2000), 2)


def epochs(world: World, p: dict[str, Any]) -> Made:
    part = OffsetForLeaderPartition(p["partition"], p["current"], p["epoch"])
    return Made(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(world.name("t", p["topic"]), [part])]), 4)


def producers(world: World, p: dict[str, Any]) -> Made:
    return Made(DescribeProducersRequest([TopicRequest(world.name("t", p["topic"]), [p["partition"]])]), 0)


SIZES = st.sampled_from([1, 200, 100_000])
LEADERS = st.sampled_from([-1, -1, 0, 0, 1])
STEPS = {
    "produce": Kind(10, produce, {
        **PLACE, "batch": BATCHES, "producer": PRODUCERS, "seed": st.integers(0, 99), "acks": st.sampled_from([-1, -1, 1, 2]),
        "version": st.sampled_from([3, 5, 8, 9, 10, 11, 12, 12, 13]), "codec": CODECS, "inside": INSIDES,
    }),
    "quietly": Kind(1, quietly, {
        **PLACE, "batch": st.sampled_from(["good", "good", "three", "crc", "magic", "packed"]), "seed": st.integers(0, 99),
    }),
    "fetch": Kind(5, fetch, {
        **PLACE, "offset": OFFSETS, "isolation": st.sampled_from([0, 1]), "size": SIZES, "leader": LEADERS,
        "version": st.sampled_from([4, 6, 9, 11, 12, 13, 17]),
    }),
    "fetch both": Kind(2, fetch_both, {
        "order": st.sampled_from([(0, 1), (1, 0), (0, 5, 1)]), "offset": st.sampled_from([0, 0, 1]), "size": SIZES,
        "limit": st.sampled_from([1, 150, 100_000]), "isolation": st.sampled_from([0, 1]),
    }),
    "fetch in session": Kind(4, fetch_in_session, {
        **PLACE, "kind": st.sampled_from(["begin", "begin", "go on", "go on", "go on", "change", "forget", "wrong epoch", "unknown", "end"]),
        "offset": OFFSETS, "isolation": st.sampled_from([0, 1]), "size": SIZES, "again": SOME,
    }),
    "offsets": Kind(4, offsets, {
        **PLACE, "time": st.sampled_from([-1, -2, -3, -4, -5, -6, -7, 0, NOW, NOW + 5000, NOW + 9_999, 1 << 50]), "leader": LEADERS,
        "isolation": st.sampled_from([0, 1]), "version": st.sampled_from([1, 2, 4, 6, 7, 8, 9, 10, 11]),
    }),
    "offsets twice": Kind(1, offsets_twice, {"topic": TOPICS, "partition": PLACE["partition"]}),
    "delete records": Kind(1, delete_records, {**PLACE, "offset": OFFSETS}),
    "epochs": Kind(1, epochs, {**PLACE, "current": st.sampled_from([-1, 0, 1]), "epoch": st.sampled_from([0, 1, -1])}),
    "producers": Kind(1, producers, PLACE),
}  # fmt: skip
