"""Backpressure by values: when producers are slowed, when they wait, and for whom."""

import pytest

from millstream.broker.overload import GO_ON, MAX_THROTTLE_MS, counts, judge, slowest


@pytest.mark.parametrize("backlog", [0, 1, 499, 500])
def test_up_to_half_of_the_limit_nothing_happens(backlog):
    assert judge(backlog, 1000) == GO_ON == (0, False)


def test_then_producers_are_slowed_more_and_more():
    times = [judge(backlog, 1000) for backlog in range(501, 1000)]
    assert not any(verdict.blocked for verdict in times)
    assert times[0].throttle_ms >= 1
    assert [v.throttle_ms for v in times] == sorted(v.throttle_ms for v in times)
    assert MAX_THROTTLE_MS * 0.9 < times[-1].throttle_ms <= MAX_THROTTLE_MS


@pytest.mark.parametrize("backlog", [1000, 1001, 10**12])
def test_at_the_limit_they_wait(backlog):
    assert judge(backlog, 1000).blocked


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_tiny_limits(limit):
    assert not judge(0, limit).blocked and judge(limit, limit).blocked
    assert all(judge(backlog, limit).throttle_ms >= 0 for backlog in range(limit))


def test_the_slowest_group_that_counts():
    positions = [("fast", 90), ("slow", 10), ("audit", 0), ("tmp-1", 5)]
    assert slowest(positions, ()) == 0
    assert slowest(positions, ("audit",)) == 5
    assert slowest(positions, ("audit", "tmp-*")) == 10
    assert slowest(positions, ("*",)) is None
    assert slowest([], ()) is None
    assert counts("tmp", ("tmp-*",)) and not counts("tmp-", ("tmp-*",)) and counts("", ())
