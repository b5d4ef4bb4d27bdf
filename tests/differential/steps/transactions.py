"""Steps on producers and transactions, of version 1 (named partitions) and 2 (KIP-890: partitions join by being written to)."""

# ruff: noqa: E501 (the table of steps reads better in long lines)
from typing import Any

from hypothesis import strategies as st

from millstream.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.list_transactions import ListTransactionsRequest
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.differential.steps.groups import FIRST_CONSUMER, member_of
from tests.differential.steps.making import EPOCHS, GROUPS, PLACE, PRODUCERS, SLOTS, SOME, Kind, Made, Parameters
from tests.differential.world import World

BY_ID = 6


def init(world: World, p: dict[str, Any]) -> Made:
    slot = p["producer"]
    transactional_id = world.name("x", slot) if p["transactional"] else None
    given, epoch = -1, -1
    if p["keep"] and slot in world.producers:  # KIP-360: it goes on with what it has
        given, epoch = _producer(world, p)

    def learn(answer: Any) -> None:
        if not answer.error_code:
            world.producers[slot] = (answer.producer_id, answer.producer_epoch)
            for key in [k for k in world.sequences if k[0] == slot]:
                del world.sequences[key]
        if transactional_id:
            world.settle_transaction(transactional_id)

    return Made(InitProducerIdRequest(transactional_id, p["timeout"], given, epoch), p["version"], learn)


def _producer(world: World, p: dict[str, Any]) -> tuple[int, int]:
    pid, epoch = world.producers.get(p["producer"], (987_654, 0))
    return pid, max(0, epoch + p["epoch"])


def add_partitions(world: World, p: dict[str, Any]) -> Made:
    pid, epoch = _producer(world, p)
    indexes = [max(0, p["partition"]), *([1] if p["more"] else [])]
    topics = [AddPartitionsToTxnTopic(world.name("t", p["topic"]), sorted(set(indexes)))]
    if p["more"]:
        topics.append(AddPartitionsToTxnTopic(world.name("t", 2 if p["topic"] != 2 else 1), [0]))
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=world.name("x", p["producer"]),
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )
    return Made(request, p["version"])


def add_offsets(world: World, p: dict[str, Any]) -> Made:
    request = AddOffsetsToTxnRequest(world.name("x", p["producer"]), *_producer(world, p), world.name("g", p["group"]))
    return Made(request, p["version"])


def commit_in_transaction(world: World, p: dict[str, Any]) -> Made:
    name = world.name("t", p["topic"])
    indexes = [p["partition"]] if p["group"] < FIRST_CONSUMER else [p["partition"], 1 - min(max(p["partition"], 0), 1)]
    parts = [TxnOffsetCommitRequestPartition(index, p["offset"], -1, p["metadata"]) for index in indexes]
    topic = TxnOffsetCommitRequestTopic(name, partitions=parts)
    if p["version"] >= BY_ID:
        topic = TxnOffsetCommitRequestTopic("", world.topic_ids.get(name, bytes(15) + b"\1"), parts)
    pid, epoch = _producer(world, p)
    request = TxnOffsetCommitRequest(
        world.name("x", p["producer"]), world.name("g", p["group"]), pid, epoch, topics=[topic]
    )
    if p["member"] and p["version"] >= 3:
        _, member, generation = member_of(world, {**p, "who": "mine", "generation": p["older"]})
        request.member_id, request.generation_id_or_member_epoch = member, generation
        request.group_instance_id = world.instance(p["group"], p["slot"])
    return Made(request, p["version"])


def end(world: World, p: dict[str, Any]) -> Made:
    transactional_id = world.name("x", p["producer"])

    def learn(answer: Any) -> None:
        world.settle_transaction(transactional_id)
        if p["version"] >= 5 and not answer.error_code:
            world.producers[p["producer"]] = (answer.producer_id, answer.producer_epoch)
            for key in [k for k in world.sequences if k[0] == p["producer"]]:
                del world.sequences[key]

    return Made(EndTxnRequest(transactional_id, *_producer(world, p), p["commit"]), p["version"], learn)


def transaction(world: World, p: dict[str, Any]) -> Made:
    return Made(DescribeTransactionsRequest([world.name("x", p["producer"])]), 0)


def transactions(world: World, p: dict[str, Any]) -> Any:
    answer = world.ask(ListTransactionsRequest(p["states"], [], -1), 1)
    if isinstance(answer, str):
        return answer
    mine = [t for t in answer.transaction_states if t.transactional_id.endswith(world.run)]
    return answer.error_code, sorted(answer.unknown_state_filters), world.normal(mine)


PRODUCER: Parameters = {"producer": PRODUCERS, "epoch": EPOCHS}
STEPS = {
    "init": Kind(3, init, {
        **PRODUCER, "transactional": st.sampled_from([True, True, False]), "timeout": st.sampled_from([60_000, 60_000, 0, 99_999_999]),
        "keep": st.sampled_from([False, False, True]), "version": st.sampled_from([3, 4, 5]),
    }),
    "add partitions": Kind(3, add_partitions, {**PLACE, **PRODUCER, "more": st.sampled_from([False, False, True]), "version": st.sampled_from([0, 1, 3])}),
    "add offsets": Kind(1, add_offsets, {**PRODUCER, "group": GROUPS, "version": st.sampled_from([0, 3, 4])}),
    "commit in transaction": Kind(3, commit_in_transaction, {
        **PLACE, **PRODUCER, "group": GROUPS, "slot": SLOTS, "member": SOME, "older": EPOCHS, "offset": st.sampled_from([0, 5]),
        "metadata": st.sampled_from(["m", "m", None, "x" * 5000]), "version": st.sampled_from([0, 2, 3, 3, 4, 5, 5]),
    }),
    "end": Kind(4, end, {**PRODUCER, "commit": SOME, "version": st.sampled_from([1, 3, 3, 4, 5, 5])}),
    "transaction": Kind(1, transaction, {"producer": PRODUCERS}),
    "transactions": Kind(1, transactions, {"states": st.sampled_from([[], [], ["Ongoing"], ["CompleteAbort", "Nonsense"]])}),
}  # fmt: skip
