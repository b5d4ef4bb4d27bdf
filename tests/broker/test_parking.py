"""Appends that wait: in order, bounded, until consumers catch up, the time is over or the sender is gone."""

import pytest

from millstream.broker import limits
from millstream.broker.groups.offsets import Committed, Offsets
from millstream.broker.parking import MAX_WAIT_SECONDS, RECHECK_SECONDS, Parking
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
def parking(groups):
    return Parking(groups.loop, groups)


@pytest.fixture
def partition():
    return Partition(Topic())


def park(parking, partition, log, name, size=10, timeout=30_000):
    def append():
        partition.end += size
        log.append(name)

    return parking.park(partition, size, timeout, append, lambda: log.append(f"{name} gave up"))


def test_without_a_group_nobody_waits(parking, partition):
    partition.end = 10**9
    assert parking.verdict(partition) == (0, False)


def test_other_policies_never_wait(parking, partition, groups):
    groups.commit("g", partition, 0)
    partition.end = 1000
    partition.topic.config = TopicConfig()
    assert not parking.verdict(partition).blocked


def test_in_order_as_consumers_catch_up(parking, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    assert parking.verdict(partition).blocked
    for name in "abcd":
        assert park(parking, partition, log, name, size=30)
    counters = partition.topic.overload
    assert (counters.blocked_requests, counters.waiting_requests, counters.waiting_bytes) == (4, 4, 120)
    groups.commit("g", partition, 10)  # 90 are left: one goes, then there are 120
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a"]
    groups.commit("g", partition, 90)  # 40 are left: two go
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a", "b", "c"]
    # Also one that could go on by itself stays behind those that wait.
    assert parking.verdict(partition).blocked
    groups.commit("g", partition, 190)
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a", "b", "c", "d"] and (parking.count, parking.bytes) == (0, 0)
    assert counters.waiting_requests == counters.waiting_bytes == 0 and counters.blocked_ms > 0
    assert not parking.verdict(partition).blocked and not groups.loop.timers


def test_the_time_is_over_before_the_clients(parking, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    park(parking, partition, log, "patient", timeout=10**9)
    park(parking, partition, log, "hasty", timeout=1000)
    groups.loop.run(0.7)
    assert log == []
    groups.loop.run(0.2)
    assert log == ["hasty gave up"] and partition.topic.overload.timed_out_requests == 1
    groups.loop.run(MAX_WAIT_SECONDS)
    assert log == ["hasty gave up", "patient gave up"] and parking.count == 0


def test_bounded_in_number_and_bytes(parking, partition, groups, monkeypatch):
    groups.commit("g", partition, 0)
    partition.end = 100
    monkeypatch.setattr(limits, "MAX_PARKED", 3)
    monkeypatch.setattr(limits, "MAX_PARKED_BYTES", 100)
    assert park(parking, partition, [], "a", size=60)
    assert park(parking, partition, [], "b", size=60) is None
    assert park(parking, partition, [], "c", size=20) and park(parking, partition, [], "d", size=20)
    assert park(parking, partition, [], "e", size=0) is None
    assert partition.topic.overload.refused_requests == 2


def test_a_sender_that_is_gone(parking, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    items = [park(parking, partition, log, name) for name in "ab"]
    for item in items:
        parking.forget(item)
        parking.forget(item)
    assert (parking.count, parking.bytes) == (0, 0)
    groups.commit("g", partition, 100)
    groups.loop.run(1)
    assert log == []


def test_a_change_of_policy_lets_everybody_go(parking, partition, groups):
    log = []
    groups.commit("g", partition, 0)
    partition.end = 100
    park(parking, partition, log, "a")
    partition.topic.config = TopicConfig()
    groups.loop.run(RECHECK_SECONDS)
    assert log == ["a"]


def test_a_group_that_retention_has_overtaken_counts_from_the_start(parking, partition, groups):
    groups.commit("g", partition, 0)
    partition.end, partition.start_offset = 100, 60
    assert parking.backlog(partition) == 40
