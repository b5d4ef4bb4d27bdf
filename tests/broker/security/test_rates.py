"""Rates and buckets by values."""

import pytest

from millstream.broker.security.rates import Bucket, Rate


def test_a_rate_forgets():
    rate = Rate(1, 11)
    for second in range(30):
        rate.add(100, second * 1000)
    assert 90 <= rate.value(29_500) <= 110
    assert rate.value(45_000) == 0
    assert rate.idle(45_000)


def test_the_wait_brings_a_rate_back():
    rate = Rate(1, 11)
    rate.add(1500, 0)
    assert rate.wait(100, 0) == 5000  # 150/s over 10 s: half too much
    assert rate.wait(150, 0) == 0
    rate.add(-500, 0)
    assert rate.wait(100, 0) == 0


@pytest.mark.parametrize("burst", [20, 21, 60, 1000])
def test_what_was_too_much_is_paid_off_at_the_limit(burst):
    """Where a rate would wait until the window of the burst is over, however little it was too much."""
    bucket = Bucket(10)
    bucket.take(burst, 2, 1_000_000)
    wait = bucket.wait(2, 1_000_000)
    assert wait == (burst - 20) * 500
    if wait:
        assert bucket.wait(2, 1_000_000 + wait - 1) > 0
    assert bucket.wait(2, 1_000_000 + wait) == 0


def test_a_bucket_holds_no_more_than_its_windows_allow():
    bucket = Bucket(10)
    bucket.take(0, 2, 1_000_000)
    assert bucket.idle(2, 9_000_000)
    bucket.take(20, 2, 9_000_000)
    assert not bucket.idle(2, 9_000_000)
    assert bucket.wait(2, 9_000_000) == 0
    bucket.take(1, 2, 9_000_000)
    assert bucket.wait(2, 9_000_000) == 500
    assert bucket.wait(2, 8_000_000) == 500  # a clock that goes back takes nothing


def test_a_new_limit_counts_at_once():
    bucket = Bucket(10)
    bucket.take(30, 2, 1_000_000)
    assert bucket.wait(2, 1_000_000) == 5000
    assert bucket.wait(10, 1_000_000) == 1000
