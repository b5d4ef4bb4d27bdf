"""Pacing: never further ahead than allowed, whatever order acknowledgements come in, and never stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.demo.pacing import Clock, Pacer


@given(st.data(), st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(0, 120))
def test_nothing_is_sent_too_far_ahead_of_an_unacknowledged_one(data, steps, ahead):
    times = [sum(steps[: i + 1]) for i in range(len(steps))]
    pacer, unacknowledged, index = Pacer(ahead), {}, 0
    while index < len(times):
        allowed = not unacknowledged or times[index] - min(unacknowledged.values()) <= ahead
        assert pacer.may_send(times[index]) == allowed
        if allowed and (not unacknowledged or data.draw(st.booleans())):
            pacer.sent(index, times[index])
            unacknowledged[index] = times[index]
            index += 1
        else:
            landed = data.draw(st.sampled_from(sorted(unacknowledged)))
            pacer.acknowledged(landed)
            del unacknowledged[landed]
        assert pacer.waiting == len(unacknowledged)


def test_it_refuses_what_may_not_be_sent():
    pacer = Pacer(60)
    pacer.sent(0, 100)
    pacer.sent(1, 160)
    with pytest.raises(ValueError, match="ahead"):
        pacer.sent(2, 161)
    with pytest.raises(ValueError, match="order"):
        pacer.sent(1, 160)
    pacer.acknowledged(0)
    pacer.sent(2, 220)


def test_an_event_is_due_when_its_time_has_come():
    clock = Clock(3600, first=1000, now=50.0)
    assert clock.wait(1000, 50.0) == 0
    assert clock.wait(1060, 50.25) == 0.75
    assert clock.wait(1060, 99.0) == 0
    assert Clock(None, 0, 0).wait(10**9, 0) == 0
