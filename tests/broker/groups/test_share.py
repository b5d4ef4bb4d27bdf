"""Share groups as a state machine: joining, sharing, leaving, fencing; what is stored is all that is needed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups import share_records
from millstream.broker.groups.assignors import simple
from millstream.broker.groups.consumer_members import Changes
from millstream.broker.groups.group import Committer, Group
from millstream.broker.groups.share import ShareGroup, ShareHeartbeat
from millstream.broker.internal_topics import PREFIX, Replayed, pack
from millstream.protocol import errors

T, U = b"t" * 16, b"u" * 16


class Harness:
    def __init__(self):
        self.topics = {"t": (T, 4), "u": (U, 1)}
        self.now = 0.0
        self.stored = {}
        self.group = self.make()
        self.epochs = {}

    def make(self):
        return ShareGroup("g", lambda: self.topics, session_seconds=10.0, max_size=6)

    def beat(self, name, topics=("t",), **changes):
        epoch = changes.pop("epoch", self.epochs.get(name, 0))
        told = frozenset(topics) if not epoch else changes.pop("to", None)
        outcome = self.group.heartbeat(ShareHeartbeat(name, epoch, topics=told, **changes), self.now)
        self.store()
        if not outcome.error:
            self.epochs[name] = max(outcome.epoch, 0)
        return outcome

    def store(self):
        for key, value, version in share_records.writes(self.group):
            name = pack(key.API_KEY, key, 0)
            self.stored.pop(name, None)
            self.stored[name] = None if value is None else pack(version, value, version)
        self.group.changes = Changes()

    def restart(self):
        self.group = self.make()
        for key, value in self.stored.items():
            data = memoryview(value)[2:] if value is not None else None
            version = PREFIX.unpack_from(value)[0] if value is not None else -1
            record = Replayed(PREFIX.unpack_from(key)[0], memoryview(key)[2:], version, data, -1)
            assert record.type in share_records.TYPES
            share_records.read(record, self.group)
        self.group.restored(self.now)


def test_members_share_partitions_and_get_them_at_once():
    h = Harness()
    assert h.beat("a").assignment == {T: {0, 1, 2, 3}}
    b = h.beat("b")
    assert len(b.assignment[T]) == 2 and b.epoch == 3
    a = h.beat("a")
    assert len(a.assignment[T]) == 2 and a.assignment[T] | b.assignment[T] == {0, 1, 2, 3}
    assert h.beat("a").assignment is None  # nothing new
    for name in "cdef":
        h.beat(name)
    for name in "abcdef":
        h.beat(name)
    assert [len(m.assigned[T]) for m in h.group.members.values()] == [1] * 6
    assert h.beat("g").error == errors.GROUP_MAX_SIZE_REACHED
    kind: Group = h.group
    assert (kind.state, kind.kind, kind.follows("t"), kind.follows("u")) == ("Stable", "share", True, False)


def test_a_member_that_leaves_or_stalls_is_out():
    h = Harness()
    h.beat("a"), h.beat("b"), h.beat("a")
    assert h.beat("b", epoch=-1).error == 0
    assert h.beat("a").assignment == {T: {0, 1, 2, 3}}
    h.now = 9.0
    assert h.group.tick(h.now) == [] and h.group.next_deadline() == 10.0
    h.now = 10.0
    assert h.group.tick(h.now) == ["a"]
    assert (h.group.empty, h.group.emptied, h.group.state, h.group.next_deadline()) == (True, 10.0, "Empty", None)
    assert h.beat("a").error == errors.UNKNOWN_MEMBER_ID


def test_epochs():
    h = Harness()
    h.beat("a")
    h.beat("b")
    epoch = h.beat("a").epoch
    assert h.beat("a", epoch=epoch - 1).error == 0  # the last answer was lost
    assert h.beat("a", epoch=epoch - 2).error == h.beat("a", epoch=epoch + 1).error == errors.FENCED_MEMBER_EPOCH
    assert h.beat("nobody", epoch=1).error == h.beat("nobody", epoch=-1).error == errors.UNKNOWN_MEMBER_ID
    assert h.beat("a", epoch=0).assignment  # it begins again
    assert h.group.check_commit(Committer("a", None, epoch, [], 9), 0) == errors.GROUP_ID_NOT_FOUND


def test_topics_that_come_grow_and_go_and_other_subscriptions():
    h = Harness()
    h.beat("a", topics=("t", "later"))
    h.topics["t"] = (T, 6)
    assert h.beat("a").assignment == {T: {0, 1, 2, 3, 4, 5}}
    h.topics["later"] = (b"l" * 16, 1)
    assert set(h.beat("a").assignment) == {T, b"l" * 16}
    del h.topics["t"]
    assert set(h.beat("a").assignment) == {b"l" * 16}
    assert h.beat("a", to=frozenset(["u"])).assignment == {U: {0}}


def test_a_restart_finds_everything():
    h = Harness()
    for name in "abc":
        h.beat(name)
    h.beat("b", epoch=-1)
    h.beat("a")
    before = h.group
    h.now = 7.0
    h.restart()
    assert {m.id: (m.epoch, m.assigned, m.topics, m.deadline) for m in h.group.members.values()} == {
        m.id: (m.epoch, m.assigned, m.topics, 17.0) for m in before.members.values()
    }
    assert (h.group.epoch, h.group.target_epoch, h.group.target) == (before.epoch, before.target_epoch, before.target)
    assert h.beat("a").assignment is None
    h.topics["t"] = (T, 5)  # while the broker is away
    h.restart()
    assert h.beat("a").assignment is not None
    h.beat("a", epoch=-1), h.beat("c", epoch=-1)
    h.restart()
    assert h.group.empty


@given(
    wanted=st.lists(st.sets(st.sampled_from([T, U])), min_size=1, max_size=7),
    counts=st.tuples(st.integers(0, 9), st.integers(0, 3)),
    gone=st.integers(0, 3),
    more=st.integers(0, 4),
)
def test_the_assignor(wanted, counts, gone, more):
    before = {}
    members = {f"m{number}": topics for number, topics in enumerate(wanted)}
    for step in range(3):
        partitions = dict(zip((T, U), counts, strict=True))
        target = simple(members, partitions, before)
        for topic, count in partitions.items():
            loads = [len(target[m].get(topic, ())) for m, topics in members.items() if topic in topics]
            readers = [sum(index in each.get(topic, ()) for each in target.values()) for index in range(count)]
            if loads and count:
                assert min(readers) >= 1 and max(readers) - min(readers) <= 1
                assert min(loads) >= 1 or len(loads) <= count
                assert max(loads) - min(loads) <= 1
            assert all(topic in members[m] for m, each in target.items() if topic in each)
        assert simple(members, partitions, target) == target  # nothing moves without a reason
        before = target
        if step == 0:
            members = dict(list(members.items())[gone:]) or {"last": {T}}
        else:
            members |= {f"n{number}": {T, U} for number in range(more)}
