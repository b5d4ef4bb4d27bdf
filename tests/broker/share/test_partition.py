"""The share partition: cases by hand, then random runs against a model with one entry per offset."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.broker.internal_topics import PREFIX, Replayed, pack
from millstream.broker.refused import Refused
from millstream.broker.share import records
from millstream.broker.share.partition import Ack, Acknowledgement, Limits, Mode, SharePartition
from millstream.broker.share.runs import State
from millstream.protocol import errors

LIMITS = Limits(deliveries=3, in_flight=20, lock_seconds=10.0)
WHERE = records.Where("g", b"t" * 16, 0)


def acquire(partition, member="a", batches=((0, 4), (5, 9)), most=100, now=0.0, limits=LIMITS, **more):
    change = partition.acquire(member, batches, most, limits, now, **more)
    partition.make(change)
    return [tuple(each) for each in change.acquired]


def acknowledge(partition, first, last, *types, member="a", now=0.0):
    change = partition.acknowledge(member, [Acknowledgement(first, last, types)], LIMITS, now)
    partition.make(change)
    return change.update


def states(partition):
    return {offset: (r.state.name, r.deliveries) for r in partition.runs for offset in range(r.first, r.last + 1)}


def test_what_is_accepted_is_done_and_the_start_moves():
    p = SharePartition(0)
    assert acquire(p) == [(0, 9, 1)]
    update = acknowledge(p, 3, 6, Ack.ACCEPT)
    assert (update.start, update.complete, p.start) == (-1, 4, 0)
    update = acknowledge(p, 0, 2, Ack.ACCEPT)
    assert (update.start, update.batches, update.complete, p.start) == (7, (), 0, 7)
    assert acknowledge(p, 7, 9, Ack.REJECT, Ack.GAP, Ack.ACCEPT).start == 10
    assert (p.start, p.end, p.runs) == (10, 10, [])


def test_what_is_released_is_delivered_again_until_it_was_too_often():
    p = SharePartition(0)
    assert acquire(p, batches=[(0, 4)]) == [(0, 4, 1)]
    acknowledge(p, 0, 4, Ack.RELEASE, Ack.ACCEPT, Ack.RELEASE, Ack.RELEASE, Ack.RELEASE)
    assert p.next_offset == 0
    assert acquire(p, batches=[(0, 4)], most=1) == [(0, 0, 2), (2, 4, 2)]  # the batch as a whole
    acknowledge(p, 0, 0, Ack.RELEASE)
    update = acknowledge(p, 2, 4, Ack.RELEASE)
    assert [(b.first, b.last, b.state.name, b.deliveries) for b in update.batches] == [(2, 4, "AVAILABLE", 2)]
    assert acquire(p, "b", batches=[(0, 4)]) == [(0, 0, 3), (2, 4, 3)]
    p.make(p.release("b", LIMITS))
    assert p.start == p.next_offset == 5  # the third was the last


def test_what_holds_nothing_to_deliver_is_passed():
    p = SharePartition(0)
    change = p.acquire("a", [(2, 3), (6, 7)], 100, LIMITS, 0.0, skipped=[(0, 1), (4, 5), (8, 8)])
    p.make(change)
    assert [tuple(each) for each in change.acquired] == [(2, 3, 1), (6, 7, 1)]
    assert (change.update.start, change.update.batches, p.end) == (2, tuple(r for r in p.runs if r.state.done), 9)
    acknowledge(p, 2, 3, Ack.ACCEPT, Ack.RELEASE)
    acknowledge(p, 6, 7, Ack.ACCEPT)
    assert (p.start, p.end, p.next_offset) == (3, 9, 3)
    # what was available and has gone since (compaction) is passed, too; what others have is left to them
    acquire(p, "b", [(9, 10)])
    change = p.acquire("a", [], 100, LIMITS, 0.0, skipped=[(3, 12)])
    p.make(change)
    archived = dict.fromkeys((11, 12), ("ARCHIVED", 0))
    assert not change.acquired and states(p) == {9: ("ACQUIRED", 1), 10: ("ACQUIRED", 1)} | archived
    assert (change.update.start, p.end) == (9, 13)


def test_what_is_passed_behind_what_was_not_wanted_is_not_passed_yet():
    p = SharePartition(0)
    change = p.acquire("a", [(0, 1), (3, 4)], 2, LIMITS, 0.0, skipped=[(2, 2), (5, 5)])
    p.make(change)
    assert [tuple(each) for each in change.acquired] == [(0, 1, 1)]
    assert p.end == 2 and change.update is None


def test_locks_end_and_may_be_renewed():
    p = SharePartition(0)
    acquire(p, batches=[(0, 4)])
    assert p.next_deadline() == 10.0
    assert acknowledge(p, 1, 2, Ack.RENEW, now=5.0) is None  # nothing to store
    change = p.tick(LIMITS, 10.0)
    p.make(change)
    assert [(b.first, b.last) for b in change.update.batches] == [(0, 0), (3, 4)]
    assert p.next_deadline() == 15.0 and p.next_offset == 0
    assert acquire(p, "b", batches=[(0, 4)]) == [(0, 0, 2), (3, 4, 2)]
    with pytest.raises(Refused):
        acknowledge(p, 0, 0, Ack.ACCEPT)  # it is somebody else's now


@pytest.mark.parametrize(
    ("first", "last", "types", "code"),
    [
        (0, 1, [1, 1, 1], errors.INVALID_REQUEST),
        (0, 1, [9], errors.INVALID_REQUEST),
        (0, 1, [-1], errors.INVALID_REQUEST),
        (1, 0, [1], errors.INVALID_REQUEST),
        (0, 10, [1], errors.INVALID_REQUEST),
        (8, 9, [1], errors.INVALID_RECORD_STATE),
        (4, 5, [1], errors.INVALID_RECORD_STATE),
    ],
)
def test_acknowledgements_are_refused_as_a_whole(first, last, types, code):
    p = SharePartition(0)
    acquire(p, most=1)
    acquire(p, "b", batches=[(5, 9)])
    before = states(p)
    good = Acknowledgement(0, 0, [1])
    with pytest.raises(Refused) as refused:
        p.acknowledge("a", [Acknowledgement(first, last, types)], LIMITS, 0)
    assert refused.value.code == code
    if first > 0 and last >= first:
        with pytest.raises(Refused):
            p.acknowledge("a", [good, Acknowledgement(first, last, types)], LIMITS, 0)
    assert states(p) == before


def test_both_modes():
    p = SharePartition(0)
    assert acquire(p, most=3) == [(0, 4, 1)]  # the whole batch
    p = SharePartition(0)
    assert acquire(p, most=3, mode=Mode.RECORD_LIMIT) == [(0, 2, 1)]
    assert acquire(p, "b", batches=[(0, 4), (5, 9)], most=3, mode=Mode.RECORD_LIMIT) == [(3, 5, 1)]
    p = SharePartition(0)
    assert acquire(p, batch_size=4) == [(0, 4, 1), (5, 9, 1)]
    assert acquire(SharePartition(0), batches=[(0, 1), (2, 3), (4, 5)], batch_size=4) == [(0, 3, 1), (4, 5, 1)]


def test_holes_between_batches_are_done_with():
    p = SharePartition(0)
    assert acquire(p, batches=[(0, 1), (4, 5)]) == [(0, 1, 1), (4, 5, 1)]
    assert acknowledge(p, 0, 1, Ack.ACCEPT).start == 4
    p = SharePartition(0)
    acquire(p, batches=[(3, 4)])  # compaction has taken the first ones
    assert p.start == 3


def test_what_is_in_flight_is_bounded():
    p = SharePartition(0)
    acquire(p, batches=[(0, 14), (15, 29), (30, 44)])
    assert (p.end, p.has_room(LIMITS)) == (30, False)  # a batch is not cut
    assert acquire(p, batches=[(30, 44)]) == []
    p.make(p.release("a", LIMITS))
    assert p.has_room(LIMITS)
    assert acquire(p, "b", batches=[(0, 14)], most=1, mode=Mode.RECORD_LIMIT) == [(0, 0, 2)]
    p = SharePartition(0)
    acquire(p, batches=[(0, 99)], mode=Mode.RECORD_LIMIT)
    assert p.end == 20


def test_the_log_begins_later():
    p = SharePartition(0)
    acquire(p)
    p.make(p.log_started(3))
    assert p.start == 3
    acknowledge(p, 0, 2, Ack.ACCEPT)  # too late, and nothing is wrong
    acknowledge(p, 2, 4, Ack.ACCEPT)
    assert p.start == 5
    p.make(p.log_started(50))
    assert (p.start, p.end, p.runs) == (50, 50, [])
    assert p.log_started(50).update is None


class Machine(RuleBasedStateMachine):
    """Members fetch, acknowledge, stall and vanish; the log loses its beginning; the broker dies."""

    @initialize(sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=3, max_size=12))
    def begin(self, sizes):
        self.batches, at = [], 0
        for size, hole in sizes:
            at += hole
            self.batches.append((at, at + size - 1))
            at += size
        self.now = 0.0
        self.limits = LIMITS
        self.partition = SharePartition(0)
        self.model: dict[int, tuple[State, int, str, float]] = {}  # from the start on, without what is done before it
        self.start = self.end = 0
        self.stored = records.Stored(0)
        self.log: list[Replayed] = []
        self.write(records.snapshot_write(WHERE, self.stored, 0))
        self.stored.snapshot_epoch = 1
        self.snapshots = 1

    def write(self, write):
        key, value, version = write
        data = memoryview(pack(version, value, version))
        packed = memoryview(pack(key.API_KEY, key, 0))
        self.log.append(Replayed(PREFIX.unpack_from(packed)[0], packed[2:], version, data[2:], -1))

    def make(self, change):
        if change.update is not None:
            write, self.stored = records.next_write(WHERE, self.stored, change.update, 0)
            self.snapshots += write[0].API_KEY == records.SNAPSHOT
            self.write(write)
        self.partition.make(change)
        self.settle()

    def settle(self):
        while self.start < self.end and self.model[self.start][0].done:
            del self.model[self.start]
            self.start += 1

    @rule(
        member=st.sampled_from("abc"), most=st.integers(0, 8), skip=st.integers(0, 2), much=st.integers(1, 3),
        mode=st.sampled_from(Mode), size=st.integers(1, 8),
    )  # fmt: skip
    def fetch(self, member, most, skip, much, mode, size):
        at = self.partition.next_offset
        there = [batch for batch in self.batches if batch[1] >= at][skip : skip + much]
        change = self.partition.acquire(member, there, most, self.limits, self.now, mode=mode, batch_size=size)
        expected, left, end, free = {}, most, self.end, {}
        for first, last in there:
            if left <= 0:
                break
            for offset in range(max(first, self.start), min(last, self.end - 1) + 1):
                state, count, *_ = self.model[offset]
                if state is State.AVAILABLE and (mode is Mode.BATCH_OPTIMIZED or left > 0):
                    expected[offset] = count + 1
                    left -= 1
            if last >= end and left > 0 and (room := self.limits.in_flight - (end - self.start)) > 0:
                new = max(first, end)
                free.update((offset, (State.ARCHIVED, 0, "", 0.0)) for offset in range(end, new))
                stop = last if mode is Mode.BATCH_OPTIMIZED else min(last, new + min(left, room) - 1)
                for offset in range(new, stop + 1):
                    expected[offset] = 1
                    left -= 1
                end = stop + 1
        assert {o: each.deliveries for each in change.acquired for o in range(each.first, each.last + 1)} == expected
        if mode is Mode.RECORD_LIMIT:
            assert len(expected) <= max(most, 0)
        self.end = end
        self.model |= free
        deadline = self.now + self.limits.lock_seconds
        self.model |= {offset: (State.ACQUIRED, count, member, deadline) for offset, count in expected.items()}
        self.make(change)

    @rule(data=st.data(), member=st.sampled_from("abc"))
    def acknowledge(self, data, member):
        mine = [o for o, (state, _, whose, _) in self.model.items() if state is State.ACQUIRED and whose == member]
        if not mine:
            return
        first = data.draw(st.sampled_from(sorted(mine)))
        last = first
        while last + 1 in mine and data.draw(st.booleans()):
            last += 1
        kinds = st.sampled_from([Ack.GAP, Ack.ACCEPT, Ack.ACCEPT, Ack.RELEASE, Ack.REJECT, Ack.RENEW])
        number = data.draw(st.sampled_from([1, last - first + 1]))
        types = data.draw(st.lists(kinds, min_size=number, max_size=number))
        change = self.partition.acknowledge(member, [Acknowledgement(first, last, types)], self.limits, self.now)
        for offset in range(first, last + 1):
            kind = types[0] if number == 1 else types[offset - first]
            _, count, *_ = self.model[offset]
            if kind is Ack.RENEW:
                self.model[offset] = (State.ACQUIRED, count, member, self.now + self.limits.lock_seconds)
            elif kind is Ack.RELEASE:
                self.free(offset)
            else:
                done = State.ACKNOWLEDGED if kind is Ack.ACCEPT else State.ARCHIVED
                self.model[offset] = (done, count, "", 0.0)
        self.make(change)

    def free(self, offset):
        _, count, *_ = self.model[offset]
        state = State.ARCHIVED if count >= self.limits.deliveries else State.AVAILABLE
        self.model[offset] = (state, count, "", 0.0)

    @rule(member=st.sampled_from("abc"), first=st.integers(0, 60), size=st.integers(1, 5))
    def wrong(self, member, first, size):
        """Offsets that the member has not acquired: refused, and nothing changes."""
        span = range(max(first, self.start), first + size)
        if all(o in self.model and self.model[o][0] is State.ACQUIRED and self.model[o][2] == member for o in span):
            return
        with pytest.raises(Refused):
            self.partition.acknowledge(
                member, [Acknowledgement(first, first + size - 1, [Ack.ACCEPT])], self.limits, self.now
            )

    @rule(member=st.sampled_from("abc"))
    def leave(self, member):
        change = self.partition.release(member, self.limits)
        for offset, (state, _, whose, _) in list(self.model.items()):
            if state is State.ACQUIRED and whose == member:
                self.free(offset)
        self.make(change)

    @rule(seconds=st.sampled_from([0.5, 4.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds
        change = self.partition.tick(self.limits, self.now)
        for offset, (state, _, _, deadline) in list(self.model.items()):
            if state is State.ACQUIRED and deadline <= self.now:
                self.free(offset)
        self.make(change)

    @rule(by=st.integers(1, 4))
    def retention(self, by):
        offset = self.start + by
        change = self.partition.log_started(offset)
        self.model = {o: each for o, each in self.model.items() if o >= offset}
        self.start, self.end = offset, max(self.end, offset)
        self.make(change)

    @rule(deliveries=st.integers(1, 4), in_flight=st.integers(1, 20))
    def reconfigure(self, deliveries, in_flight):
        self.limits = Limits(deliveries, in_flight, 10.0)

    @precondition(lambda self: self.log)
    @rule()
    def die(self):
        """All that is left is what was stored; deliveries that were under way do not count."""
        known: dict[records.Where, records.Stored] = {}
        for record in self.log:
            records.read(record, known)
        self.stored = known[WHERE]
        assert self.stored.snapshot_epoch == self.snapshots
        self.partition = self.stored.partition()
        for offset, (state, count, *_) in list(self.model.items()):
            if state is State.ACQUIRED:
                self.model[offset] = (State.AVAILABLE, count - 1, "", 0.0)
        while self.end > self.start and self.model[self.end - 1][:2] == (State.AVAILABLE, 0):
            self.end -= 1
            del self.model[self.end]
        self.settle()

    @invariant()
    def is_as_the_model(self):
        if not hasattr(self, "partition"):
            return
        p = self.partition
        shown = {o: (r.state, r.deliveries, r.member, r.deadline) for r in p.runs for o in range(r.first, r.last + 1)}
        assert shown == self.model
        assert (p.start, p.end) == (self.start, self.end)
        assert [o for r in p.runs for o in range(r.first, r.last + 1)] == list(range(self.start, self.end))
        assert not any(a.like(b) for a, b in zip(p.runs, p.runs[1:], strict=False))
        assert p.next_offset == next((o for o in sorted(self.model) if self.model[o][0] is State.AVAILABLE), self.end)
        assert p.complete == sum(state.done for state, *_ in self.model.values())
        again = SharePartition(p.start, p.stored())
        kept = self.stored.partition()
        assert (again.start, again.end, again.runs) == (kept.start, kept.end, kept.runs)


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
