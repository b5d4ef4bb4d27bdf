"""Appends that wait: in order, bounded, until consumers catch up, the time is over or the sender is gone."""

import pytest

from millstream.broker import limits
from millstream.broker.groups.offsets import Committed, Offsets
from millstream.broker.purgatory import MAX_WAIT_SECONDS, RECHECK_SECONDS, Purgatory
from millstream.log import TopicConfig
from millstream.log.overload import Counters


class Loop:
    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay, call):
        self.timers.append((self.now + delay, call))
        return self

    def cancel(self):
        self.timers.clear()

    def run(self, seconds):
        until = self.now + seconds
        while self.timers and self.timers[0][0] <= until:
            self.now, call = self.timers.pop(0)
            call()
        self.now = until


class Topic:
    name = "t"

    def __init__(self):
        self.config = TopicConfig({"millstream.overload": "backpressure", "millstream.backlog.bytes": "100"})
        self.overload = Counters()


class Partition:
    """Every record is a byte."""

    def __init__(self, topic, index=0):
        self.topic, self.index = topic, index
        self.start_offset = self.end = 0

    def bytes_from(self, offset):
        return self.end - offset


class Groups:
    """What they have committed, and the clock."""

    def __init__(self):
        self.loop = Loop()
        self.offsets = {}

    def commit(self, group, partition, offset):
        self.offsets.setdefault(group, Offsets()).commit((partition.topic.name, partition.index), Committed(offset))
        self.loop.run(RECHECK_SECONDS)


@pytest.fixture
def groups():
    return Groups()


@pytest.fixture
def purgatory(groups):
    return Purgatory(groups.loop, groups)


@pytest.fixture
def partition():
    return Partition(Topic())


def park(purgatory, partition, log, name, size=10, timeout=30_000):
    def append():
        partition.end += size
        log.append(name)

    return purgatory.park(partition, size, timeout, append, lambda: log.append(f"{name} gave up"))


def test_without_a_group_nobody_waits(purgatory, partition):
    partition.end = 10**9
    assert purgatory.verdict(partition) == (0, False)


def test_other_policies_never_wait(purgatory, partition, groups):
    groups.commit("g", partition, 0)
    partition.end = 1000
    partition.topic.config = TopicConfig()
    assert not purgatory.verdict(partition).blocked


def test_in_order_as_consumers_catch_up(purgatory, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    assert purgatory.verdict(partition).blocked
    for name in "abcd":
        assert park(purgatory, partition, log, name, size=30)
    counters = partition.topic.overload
    assert (counters.blocked_requests, counters.waiting_requests, counters.waiting_bytes) == (4, 4, 120)
    groups.commit("g", partition, 10)  # 90 are left: one goes, then there are 120
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a"]
    groups.commit("g", partition, 90)  # 40 are left: two go
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a", "b", "c"]
    # Also one that could go on by itself stays behind those that wait.
    assert purgatory.verdict(partition).blocked
    groups.commit("g", partition, 190)
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a", "b", "c", "d"] and (purgatory.count, purgatory.bytes) == (0, 0)
    assert counters.waiting_requests == counters.waiting_bytes == 0 and counters.blocked_ms > 0
    assert not purgatory.verdict(partition).blocked and not groups.loop.timers


def test_the_time_is_over_before_the_clients(purgatory, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    park(purgatory, partition, log, "patient", timeout=10**9)
    park(purgatory, partition, log, "hasty", timeout=1000)
    groups.loop.run(0.7)
    assert log == []
    groups.loop.run(0.2)
    assert log == ["hasty gave up"] and partition.topic.overload.timed_out_requests == 1
    groups.loop.run(MAX_WAIT_SECONDS)
    assert log == ["hasty gave up", "patient gave up"] and purgatory.count == 0


def test_bounded_in_number_and_bytes(purgatory, partition, groups, monkeypatch):
    groups.commit("g", partition, 0)
    partition.end = 100
    monkeypatch.setattr(limits, "MAX_PARKED", 3)
    monkeypatch.setattr(limits, "MAX_PARKED_BYTES", 100)
    assert park(purgatory, partition, [], "a", size=60)
    assert park(purgatory, partition, [], "b", size=60) is None
    assert park(purgatory, partition, [], "c", size=20) and park(purgatory, partition, [], "d", size=20)
    assert park(purgatory, partition, [], "e", size=0) is None
    assert partition.topic.overload.refused_requests == 2


def test_a_sender_that_is_gone(purgatory, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    items = [park(purgatory, partition, log, name) for name in "ab"]
    for item in items:
        purgatory.forget(item)
        purgatory.forget(item)
    assert (purgatory.count, purgatory.bytes) == (0, 0)
    groups.commit("g", partition, 100)
    groups.loop.run(1)
    assert log == []


def test_a_change_of_policy_lets_everybody_go(purgatory, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    park(purgatory, partition, log, "a")
    partition.topic.config = TopicConfig()
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a"]


def test_a_group_that_retention_has_overtaken_counts_from_the_start(purgatory, partition, groups):
    groups.commit("g", partition, 0)
    partition.end, partition.start_offset = 100, 60
    assert purgatory.backlog(partition) == 40
