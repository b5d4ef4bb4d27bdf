"""What becomes of a share group when its partitions change under it: transactions, retention, deletion, settings, offsets."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.broker.share.records import Where
from millstream.broker.topics import SHARE_TOPIC
from millstream.protocol import errors
from millstream.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millstream.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from millstream.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millstream.protocol.messages.delete_groups import DeleteGroupsRequest
from millstream.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from millstream.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from millstream.protocol.messages.end_txn import EndTxnRequest
from millstream.protocol.messages.find_coordinator import FindCoordinatorRequest
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.broker.inside import Inside
from tests.broker.share.workers import ACCEPT, RELEASE, Worker, acquired, configure, create, fresh, produce

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    settings = {"share.coordinator.snapshot.update.records.per.snapshot": "5", "group.share.max.share.sessions": "20"}
    with Inside(tmp_path_factory.mktemp("share") / "data", **settings) as running:
        yield running


@pytest.fixture
def wire(inside):
    with inside.wire() as opened:
        yield opened


@pytest.fixture
def place(wire):
    topic, group = fresh("work"), fresh("group")
    create(wire, topic)
    assert configure(wire, group, share_auto_offset_reset="earliest") == 0
    return topic, group


@pytest.fixture
def hire(inside, place):
    workers = []

    def made(partitions: int = 1, group: str = "") -> Worker:
        worker = Worker(inside.address, group or place[1], place[0], partitions=partitions)
        workers.append(worker)
        assert worker.join().error_code == 0
        return worker

    yield made
    for worker in workers:
        worker.close()


class Transaction:
    """One transactional producer on the wire."""

    def __init__(self, wire, topic):
        self.wire, self.topic, self.id = wire, topic, "t"
        made = wire.ask(InitProducerIdRequest("t", 60_000), 4)
        self.producer, self.sequence = (made.producer_id, made.producer_epoch), 0

    def write(self, *values):
        add = AddPartitionsToTxnRequest()
        add.v3_and_below_transactional_id = "t"
        add.v3_and_below_producer_id, add.v3_and_below_producer_epoch = self.producer
        add.v3_and_below_topics = [AddPartitionsToTxnTopic(self.topic, [0])]
        assert self.wire.ask(add, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        more = {"producer_id": self.producer[0], "producer_epoch": self.producer[1], "base_sequence": self.sequence}
        self.sequence += len(values)
        return produce(self.wire, self.topic, *values, transactional=True, **more)

    def end(self, commit):
        assert self.wire.ask(EndTxnRequest("t", *self.producer, commit), 3).error_code == 0


def test_who_coordinates_a_share_partition(inside, wire):
    def find(key):
        return wire.ask(FindCoordinatorRequest("", 2, [key]), 6).coordinators[0]

    assert (find("a:group:AAAAAAAAAAAAAAAAAAAAAA:0").error_code, find("g:AAAAAAAAAAAAAAAAAAAAAA:0").node_id) == (0, 0)
    assert find("g").error_code == find("g:AAAA:0").error_code == errors.INVALID_REQUEST


def stands(wire, group):
    [told] = wire.ask(DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])).groups
    return [(p.start_offset, p.lag) for t in told.topics for p in t.partitions]


def test_aborted_records_and_markers_are_not_delivered(wire, place, hire):
    assert configure(wire, place[1], share_isolation_level="read_committed") == 0
    transaction = Transaction(wire, place[0])
    transaction.write(b"a", b"b")  # 0, 1
    transaction.end(False)  # 2
    transaction.write(b"c")  # 3
    a = hire()
    assert a.take() == []  # it is open
    request = a.request(wait=20_000)
    a.wire.send(request, 2)
    time.sleep(0.1)
    transaction.end(True)  # 4
    assert acquired(a.wire.receive(request, 2)) == [(3, 1)]
    assert a.take((3, 3, ACCEPT)) == []
    assert stands(wire, place[1]) == [(5, 0)]


def test_uncommitted_records_are_delivered_and_markers_are_not(wire, place, hire):
    transaction = Transaction(wire, place[0])
    transaction.write(b"a")
    a = hire()
    assert a.take() == [(0, 1)]
    transaction.end(False)
    produce(wire, place[0], b"b")
    assert a.take((0, 0, ACCEPT)) == [(2, 1)]
    assert a.take((2, 2, ACCEPT)) == []
    assert stands(wire, place[1]) == [(3, 0)]


def test_many_aborted_transactions_are_passed(inside, wire, place, hire):
    assert configure(wire, place[1], share_isolation_level="read_committed") == 0
    transaction = Transaction(wire, place[0])
    for _ in range(12):
        transaction.write(b"x" * 200_000)
        transaction.end(False)
    produce(wire, place[0], b"here")
    a = hire()
    assert a.take(wait=20_000) == [(24, 1)]


def test_records_that_are_deleted_under_workers(wire, place, hire):
    for _ in range(3):
        produce(wire, place[0], *[b"x"] * 4)
    a = hire()
    assert [offset for offset, _ in a.take(records=8)] == list(range(8))
    gone = DeleteRecordsRequest([DeleteRecordsTopic(place[0], [DeleteRecordsPartition(0, 6)])], 5000)
    assert wire.ask(gone).topics[0].partitions[0].error_code == 0
    b = hire()
    assert [offset for offset, _ in b.take()] == [8, 9, 10, 11]
    assert a.acknowledge((0, 7, ACCEPT)) == 0  # six of them were there no more
    assert stands(wire, place[1]) == [(8, 4)]


def test_a_topic_that_is_deleted_under_workers(inside, wire, place, hire):
    a = hire()
    request = a.request(wait=20_000)
    a.wire.send(request, 2)
    time.sleep(0.1)
    assert wire.ask(DeleteTopicsRequest([DeleteTopicState(place[0])]), 6).responses[0].error_code == 0
    [part] = a.wire.receive(request, 2).responses[0].partitions
    assert part.error_code == errors.UNKNOWN_TOPIC_ID
    assert not [w for w in inside.broker.groups.share_states.known if w.group_id == place[1]]
    create(wire, place[0])  # another one of its name begins at its beginning
    produce(wire, place[0], b"x")
    assert hire().take() == [(0, 1)]


def test_more_partitions(wire, place, hire):
    a = hire()
    wire.ask(CreatePartitionsRequest([CreatePartitionsTopic(place[0], 3, None)], 5000))
    produce(wire, place[0], b"x", partition=2)
    answer = a.join()
    assert answer.assignment.topic_partitions[0].partitions == [0, 1, 2]
    a.places = range(3)
    assert a.take() == [(0, 1)]


def test_a_group_begins_where_its_settings_say(inside, wire, place, hire):
    produce(wire, place[0], b"old")
    latest, lately = fresh("latest"), fresh("lately")
    assert hire(group=latest).take() == []
    produce(wire, place[0], b"new")
    assert configure(wire, lately, share_auto_offset_reset="by_duration:PT1H") == 0
    assert hire(group=lately).take() == [(0, 1), (1, 1)]
    assert [w.start for key, w in inside.broker.groups.share_states.known.items() if key.group_id == latest] == [1]


def test_offsets_are_altered_and_forgotten(inside, wire, place, hire):
    produce(wire, place[0], *[b"x"] * 10)
    a = hire()
    assert len(a.take()) == 10

    def alter(start, topic=place[0]):
        parts = [AlterShareGroupOffsetsRequestPartition(0, start)]
        answer = wire.ask(AlterShareGroupOffsetsRequest(place[1], [AlterShareGroupOffsetsRequestTopic(topic, parts)]))
        return answer.error_code or answer.responses[0].partitions[0].error_code

    assert a.acknowledge((0, 4, ACCEPT)) == 0
    assert stands(wire, place[1]) == [(5, 5)]
    assert alter(2) == errors.NON_EMPTY_GROUP
    assert a.leave().error_code == 0
    assert alter(2, "nowhere") == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(2) == 0
    assert stands(wire, place[1]) == [(2, 8)]
    b = hire()
    assert [o for o, _ in b.take()] == list(range(2, 10))
    assert b.leave().error_code == 0
    forget = DeleteShareGroupOffsetsRequest(place[1], [DeleteShareGroupOffsetsRequestTopic(place[0])])
    assert wire.ask(forget).responses[0].error_code == 0
    assert stands(wire, place[1]) == []
    assert wire.ask(forget).responses[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deleted_group_begins_again(inside, wire, place, hire):
    produce(wire, place[0], b"x")
    a = hire()
    assert a.take() == [(0, 1)]
    assert a.acknowledge((0, 0, ACCEPT)) == 0
    assert wire.ask(DeleteGroupsRequest([place[1]])).results[0].error_code == errors.NON_EMPTY_GROUP
    assert a.leave().error_code == 0
    assert wire.ask(DeleteGroupsRequest([place[1]])).results[0].error_code == 0
    assert not [w for w in inside.broker.groups.share_states.known if w.group_id == place[1]]
    assert hire().take() == [(0, 1)]


def test_sessions_are_bounded(inside, wire, place, hire):
    workers = [hire() for _ in range(21)]
    codes = [worker.fetch().error_code for worker in workers]
    assert codes == [0] * 20 + [errors.SHARE_SESSION_LIMIT_REACHED]
    workers[0].close()
    inside.until(lambda: len(inside.broker.share_sessions) < 20)
    workers[20].session = 0
    assert workers[20].fetch().error_code == 0


def test_what_is_acknowledged_of_a_commit_topic_is_on_disk(inside, wire):
    topic, group = fresh("safe"), fresh("group")
    create(wire, topic, millstream_durability="commit")
    configure(wire, group, share_auto_offset_reset="earliest")
    produce(wire, topic, b"a", b"b", b"c")
    a = Worker(inside.address, group, topic)
    assert a.join().error_code == 0
    assert a.take() == [(0, 1), (1, 1), (2, 1)]
    for acknowledge in (lambda: a.acknowledge((0, 0, ACCEPT)), lambda: len(a.take((1, 1, ACCEPT)))):
        assert acknowledge() == 0
        for name in (SHARE_TOPIC, "__consumer_offsets"):
            [partition] = inside.broker.log.topics[name].partitions
            assert partition.flushed_offset == partition.end_offset
    request = a.request((2, 2, ACCEPT), wait=20_000)
    a.wire.send(request, 2)
    time.sleep(0.1)
    produce(wire, topic, b"d")
    assert acquired(a.wire.receive(request, 2)) == [(3, 1)]
    a.close()


def test_records_that_a_power_cut_has_taken(inside, wire, place, hire):
    """What is said of them does not count for those that get their offsets."""
    produce(wire, place[0], *[b"x"] * 10)
    a = hire()
    a.take()
    assert a.acknowledge((0, 2, ACCEPT), (5, 6, ACCEPT)) == 0
    a.close()
    states, where = inside.broker.groups.share_states, Where(place[1], a.topic, 0)
    inside.until(lambda: all(key != place[1] for key, _ in inside.broker.share_sessions._sessions))
    for end, start, complete in ((8, 3, 2), (6, 3, 1), (2, 2, 0)):
        done = threading.Event()
        inside.loop.call_soon_threadsafe(lambda end=end, done=done: (states.truncate(where, end), done.set()))
        assert done.wait(10)
        assert (states.known[where].start, states.known[where].complete) == (start, complete)
        assert all(run.last < end for run in states.known[where].batches)
    inside.end()
    inside.start()
    assert inside.broker.groups.share_states.known[where].start == 2
    assert [offset for offset, _ in hire().take()] == list(range(2, 10))


def test_what_snapshots_replace_is_deleted(inside, wire, place, hire, monkeypatch):
    """The topic of states stays small, and everything is there after a restart."""
    monkeypatch.setattr("millstream.broker.share.store.RECORDS_PER_PARTITION", 5)
    for _ in range(40):
        produce(wire, place[0], b"x")
    a = hire()
    assert len(a.take()) == 40
    for offset in range(0, 40, 2):
        assert a.acknowledge((offset, offset, ACCEPT)) == 0
    states = inside.broker.groups.share_states
    [partition] = inside.broker.log.topics[SHARE_TOPIC].partitions
    before = partition.start_offset
    inside.loop.call_soon_threadsafe(states._prune)
    inside.until(lambda: partition.start_offset > before)
    assert partition.end_offset - partition.start_offset < 8 * len(states.known) + 12
    where = Where(place[1], a.topic, 0)
    known = states.known[where]
    a.close()
    inside.until(lambda: all(key != place[1] for key, _ in inside.broker.share_sessions._sessions))
    inside.end()
    inside.start()
    again = inside.broker.groups.share_states.known[where]
    assert (again.start, again.complete) == (1, 19) == (known.start, known.complete)
    b = hire()
    got = b.take()
    assert [offset for offset, _ in got] == list(range(1, 40, 2))
    assert {count for _, count in got} == {2}  # they were released with a's connection
    assert b.acknowledge((1, 1, RELEASE)) == 0
