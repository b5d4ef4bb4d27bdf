"""What is on disk before what, when a transaction touches a topic of durability `commit`; and that others wait for nothing."""

import errno
import shutil
import time

import pytest

from millstream.protocol import errors, records
from millstream.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.describe_transactions import DescribeTransactionsRequest
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.noted import Noted
from tests.broker.wire import Wire

pytestmark = pytest.mark.system
STATES, OFFSETS = "__transaction_state-0", "__consumer_offsets-0"


@pytest.fixture
def inside(tmp_path, monkeypatch):
    with Noted(tmp_path / "data", monkeypatch, **{"log.retention.check.interval.ms": "3600000"}) as broker:
        yield broker


def create(wire, name, durability="commit", partitions=2):
    config = [CreatableTopicConfig("millstream.durability", durability)]
    answer = wire.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1, configs=config)], 5000), 5)
    assert answer.topics[0].error_code == 0


class Client(Wire):
    """A transactional producer: of version 1 (`add`, then `produce`) or 2 (`produce` with `newer`)."""

    def __init__(self, inside, name="x"):
        super().__init__(inside.address)
        self.name = name
        self.sequence: dict[tuple[str, int], int] = {}
        answer = self.ask(InitProducerIdRequest(name, 60_000), 5)
        while answer.error_code == errors.CONCURRENT_TRANSACTIONS:
            time.sleep(0.01)
            answer = self.ask(InitProducerIdRequest(name, 60_000), 5)
        assert answer.error_code == 0, errors.name(answer.error_code)
        self.producer = answer.producer_id, answer.producer_epoch

    def add(self, *places):
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        wanted = [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in topics.items()]
        answer = self.ask(AddPartitionsToTxnRequest([], self.name, *self.producer, wanted), 3)
        return {p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition}

    def request(self, *places, count=1):
        data = []
        for topic, index in places:
            first = self.sequence.get((topic, index), 0)
            self.sequence[topic, index] = first + count
            producer_id, epoch = self.producer
            batch = records.build(
                [(None, b"v")] * count, int(time.time() * 1000), producer_id=producer_id, producer_epoch=epoch,
                base_sequence=first, transactional=True,
            )  # fmt: skip
            data.append(TopicProduceData(topic, partition_data=[PartitionProduceData(index, memoryview(batch))]))
        return ProduceRequest(self.name, -1, 30_000, data)

    def codes(self, answer):
        return [part.error_code for topic in answer.responses for part in topic.partition_responses]

    def produce(self, *places, newer=False):
        return self.codes(self.ask(self.request(*places), 12 if newer else 11))

    def end_request(self, commit=True):
        return EndTxnRequest(self.name, *self.producer, commit)

    def end(self, commit=True, version=4):
        answer = self.ask(self.end_request(commit), version)
        if version >= 5 and not answer.error_code:
            self.producer = answer.producer_id, answer.producer_epoch
            self.sequence.clear()
        return answer.error_code

    def offsets(self, topic, offset, version=5, group="g"):
        position = TxnOffsetCommitRequestTopic(topic, partitions=[TxnOffsetCommitRequestPartition(0, offset)])
        answer = self.ask(TxnOffsetCommitRequest(self.name, group, *self.producer, topics=[position]), version)
        return answer.topics[0].partitions[0].error_code


def state(inside, name="x"):
    with inside.wire() as wire:
        return wire.ask(DescribeTransactionsRequest([name]), 0).transaction_states[0].transaction_state


def stable(inside, topic, index=0):
    """Up to where committed records can be read."""
    with inside.wire() as wire:
        asked = ListOffsetsTopic(topic, [ListOffsetsPartition(index, timestamp=-1)])
        answer = wire.ask(ListOffsetsRequest(isolation_level=1, topics=[asked]), 7)
    return answer.topics[0].partitions[0].offset


def test_each_step_of_an_end_is_on_disk_before_the_next(inside):
    with inside.wire() as wire:
        create(wire, "c")
    inside.told()
    with Client(inside) as client:
        assert inside.told() == [("write", STATES), ("sync", STATES)]
        assert client.add(("c", 0), ("c", 1)) == {0}
        assert inside.told() == [("write", STATES), ("sync", STATES)]
        assert client.produce(("c", 0), ("c", 1)) == [0, 0]
        told = inside.told()
        assert told[:2] == [("write", "c-0"), ("write", "c-1")] and set(told[2:]) == {("sync", "c-0"), ("sync", "c-1")}
        for commit in (True, False):
            assert client.end(commit) == 0
            told = inside.told()
            assert told[:4] == [("write", STATES), ("sync", STATES), ("write", "c-0"), ("write", "c-1")]
            assert set(told[4:-1]) == {("sync", "c-0"), ("sync", "c-1")}
            assert told[-1] == ("write", STATES), "the completion is not waited for"
            assert client.add(("c", 0), ("c", 1)) == {0}
            inside.told()


def test_topics_that_are_not_commit_wait_for_nothing(inside):
    with inside.wire() as wire:
        create(wire, "o", "os")
    with Client(inside) as client:
        for version, newer in ((4, False), (5, True)):
            assert newer or client.add(("o", 0), ("o", 1)) == {0}
            assert client.produce(("o", 0), ("o", 1), newer=newer) == [0, 0]
            assert client.offsets("o", 3) == 0
            assert client.end(version=version) == 0
    # Also beside topics that are.
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside, "y") as client:
        inside.told()
        for version, newer in ((4, False), (5, True)):
            assert newer or client.add(("o", 0), ("o", 1)) == {0}
            assert client.produce(("o", 0), ("o", 1), newer=newer) == [0, 0]
            assert client.offsets("o", 3) == 0
            assert client.end(version=version) == 0
    assert [event for event in inside.told() if event[0] == "sync"] == []


def test_records_of_every_partition_are_on_disk_before_the_decision(inside):
    with inside.wire() as wire:
        create(wire, "c", partitions=1)
        create(wire, "o", "os", partitions=1)
    with Client(inside) as client:
        assert client.add(("c", 0), ("o", 0)) == {0}
        assert client.produce(("c", 0), ("o", 0)) == [0, 0]
        inside.told()
        assert client.end() == 0
        told = inside.told()
        assert told[:5] == [
            ("sync", "o-0"), ("write", STATES), ("sync", STATES), ("write", "c-0"), ("write", "o-0"),
        ]  # fmt: skip
        assert set(told[5:-1]) == {("sync", "c-0"), ("sync", "o-0")}


def test_a_partition_is_in_the_transaction_on_disk_before_anything_of_it(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        inside.told()
        assert client.produce(("c", 0), newer=True) == [0]
        assert inside.told() == [("write", STATES), ("sync", STATES), ("write", "c-0"), ("sync", "c-0")]
        assert client.produce(("c", 0), newer=True) == [0]
        assert inside.told() == [("write", "c-0"), ("sync", "c-0")]
        assert client.end(version=5) == 0


def test_a_partition_that_is_not_commit_waits_for_the_end_of_a_durable_transaction(inside):
    """Without its completion that end is carried out again, and must not meet records of the next transaction."""
    with inside.wire() as wire:
        create(wire, "c", partitions=1)
        create(wire, "o", "os", partitions=1)
    with Client(inside) as client:
        assert client.produce(("c", 0), ("o", 0), newer=True) == [0, 0]
        assert client.end(version=5) == 0
        inside.told()
        assert client.produce(("o", 0), newer=True) == [0]
        assert inside.told() == [("write", STATES), ("sync", STATES), ("write", "o-0")]
        assert client.produce(("o", 0), newer=True) == [0]
        assert inside.told() == [("write", "o-0")]


def test_offsets_of_a_transaction(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        inside.told()
        assert client.offsets("c", 5) == 0
        assert inside.told() == [
            ("write", STATES), ("sync", STATES), ("write", OFFSETS), ("sync", OFFSETS),
        ]  # fmt: skip
        assert client.end(version=5) == 0
        assert inside.told() == [
            ("write", STATES), ("sync", STATES), ("write", OFFSETS), ("sync", OFFSETS), ("write", STATES),
        ]  # fmt: skip
        # The group has to do with a topic that is commit: from now on this is known before its offsets come.
        assert client.ask(AddOffsetsToTxnRequest("x", *client.producer, "g"), 3).error_code == 0
        assert inside.told() == [("write", STATES), ("sync", STATES)]


def test_meanwhile_nothing_else_is_done_with_the_transaction(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client, inside.wire() as other:
        assert client.produce(("c", 0), newer=True) == [0]
        end = client.end_request()
        let_go = inside.hold(STATES)
        inside.told()
        client.send(end, 5)
        inside.until_noted(("write", STATES))
        assert other.ask(end, 5).error_code == errors.CONCURRENT_TRANSACTIONS
        assert other.ask(InitProducerIdRequest("x", 60_000), 5).error_code == errors.CONCURRENT_TRANSACTIONS
        assert client.codes(other.ask(client.request(("c", 1)), 12)) == [errors.CONCURRENT_TRANSACTIONS]
        assert inside.told() == [("write", STATES)], "a marker was written before the decision was on disk"
        assert stable(inside, "c") == 0, "records can be read before the decision is on disk"
        held = inside.hold("c-0")
        let_go()
        inside.until_noted(("write", "c-0"))
        assert other.ask(end, 5).error_code == errors.CONCURRENT_TRANSACTIONS
        assert stable(inside, "c") == 1, "it is decided: the record can be read, the marker not yet"
        held()
        answer = client.receive(end, 5)
        assert (answer.error_code, answer.producer_epoch) == (0, client.producer[1] + 1)
        assert other.ask(end, 5).error_code == 0, "an answer that was lost is given again"
        assert stable(inside, "c") == 2


def test_a_decision_that_the_disk_refuses_is_not_acknowledged(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        assert client.produce(("c", 0), newer=True) == [0]
        inside.fail("sync", STATES)
        inside.told()
        assert client.end(version=5) == errors.COORDINATOR_NOT_AVAILABLE
        assert inside.told() == [("write", STATES)]
        inside.mend()
        assert client.end(version=5) == errors.CONCURRENT_TRANSACTIONS, "it is in doubt"
        assert client.ask(InitProducerIdRequest("y", 1000), 5).error_code == errors.COORDINATOR_NOT_AVAILABLE
        assert inside.told() == [], "a sync was tried again after it had failed"
    inside.end()
    inside.start()
    deadline = time.monotonic() + 10
    while state(inside) != "CompleteCommit":
        assert time.monotonic() < deadline, state(inside)
        time.sleep(0.01)
    assert stable(inside, "c") == 2


def test_a_marker_that_the_disk_refuses_comes_after_a_restart(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        assert client.produce(("c", 0), ("c", 1), newer=True) == [0, 0]
        inside.fail("sync", "c-1")
        assert client.end(version=5) == 0, "it is decided, and that is on disk"
        assert state(inside) == "PrepareCommit"
        assert client.produce(("c", 0), newer=True) == [errors.CONCURRENT_TRANSACTIONS]
        assert stable(inside, "c", 0) == 2 and stable(inside, "c", 1) == 1, "what is not on disk cannot be read"
        inside.mend()
    inside.end()
    inside.start()
    deadline = time.monotonic() + 10
    while state(inside) != "CompleteCommit":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert stable(inside, "c", 1) >= 2


def test_records_that_the_disk_refuses_are_not_committed(inside):
    with inside.wire() as wire:
        create(wire, "c", partitions=1)
        create(wire, "o", "os", partitions=1)
    with Client(inside) as client:
        assert client.produce(("c", 0), ("o", 0), newer=True) == [0, 0]
        inside.fail("sync", "o-0")
        inside.told()
        for _ in range(2):
            assert client.end(version=5) == errors.COORDINATOR_NOT_AVAILABLE
            assert state(inside) == "Ongoing"
        assert ("write", STATES) not in inside.told()


@pytest.mark.parametrize("durability", ["os", "commit"])
def test_an_end_that_cannot_be_stored_can_be_asked_for_again(inside, durability):
    with inside.wire() as wire:
        create(wire, "t", durability)
    with Client(inside) as client:
        assert client.produce(("t", 0), newer=True) == [0]
        inside.fail("write", STATES, errno.ENOSPC)
        assert client.end(version=5) == errors.COORDINATOR_NOT_AVAILABLE
        assert client.produce(("t", 1), newer=True) != [0]
        assert state(inside) == "Ongoing"
        inside.mend()
        assert client.end(version=5) == 0
        assert stable(inside, "t") == 2


def test_a_timeout_aborts_in_the_same_order(inside):
    with inside.wire() as wire:
        create(wire, "c")
        answer = wire.ask(InitProducerIdRequest("x", 300), 5)
    with Client(inside, "other") as client:
        client.name, client.producer = "x", (answer.producer_id, answer.producer_epoch)
        assert client.produce(("c", 0), newer=True) == [0]
        inside.told()
        inside.until_noted(("sync", "c-0"))
        told = inside.told()
        assert told[:4] == [("write", STATES), ("sync", STATES), ("write", "c-0"), ("sync", "c-0")]
        assert client.produce(("c", 0), newer=True) == [errors.INVALID_PRODUCER_EPOCH]


def test_what_a_killed_broker_left_is_on_disk_before_its_transactions_go_on(inside):
    """What it had written but not synced was read back; markers that rely on it come after its sync."""
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        assert client.produce(("c", 0), newer=True) == [0]
        let_go = inside.hold(STATES)
        client.send(client.end_request(), 5)
        inside.until_noted(("write", STATES))
        prepared = inside.folder.with_name("killed")
        shutil.copytree(inside.folder, prepared)
        let_go()
    inside.end()
    inside.folder = prepared
    inside.told()
    inside.start()
    inside.until_noted(("write", "c-0"))
    told = inside.told()
    assert told.index(("sync", STATES)) < told.index(("write", "c-0"))


def test_a_stale_retry_does_not_touch_the_next_end(inside):
    """Markers that could not be written are tried again; meanwhile the next transaction may be about to end."""
    with inside.wire() as wire:
        create(wire, "c", partitions=1)
        create(wire, "o", "os", partitions=1)
    with Client(inside) as client:
        assert client.produce(("c", 0), ("o", 0), newer=True) == [0, 0]
        inside.fail("write", "c-0", errno.ENOSPC)
        assert client.end(version=5) == 0
        inside.mend()
        deadline = time.monotonic() + 10
        while state(inside) != "CompleteCommit":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.produce(("c", 0), ("o", 0), newer=True) == [0, 0]
        held = inside.hold("o-0")
        inside.told()
        client.send(client.end_request(), 5)
        coordinator = inside.server.broker.transactions
        for _ in range(3):
            inside.loop.call_soon_threadsafe(coordinator._retry, "x")
        assert state(inside) == "PrepareCommit"
        assert inside.told() == [], "something was written before the records were on disk"
        held()
        assert client.receive(client.end_request(), 5).error_code == 0
