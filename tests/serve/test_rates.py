"""Rates from counters: now, over a minute, after gaps and after a topic was made anew."""

import pytest

from millstream.serve.rates import KEPT_S, Rates


def filled(samples):
    rates = Rates()
    for at, value in samples:
        rates.add(at, {"t": value})
    return rates


def test_a_steady_counter_has_its_rate():
    rates = filled((100 + s, 50 * s) for s in range(20))
    assert rates.now("t") == pytest.approx(50)
    assert rates.history("t") == pytest.approx([50] * 19)


def test_the_rate_now_follows_a_change_within_seconds():
    rates = filled([(s, 0) for s in range(30)] + [(30 + s, 100 * s) for s in range(1, 6)])
    assert rates.now("t") == pytest.approx(100)


def test_one_sample_or_none_is_no_rate():
    assert filled([]).now("t") == 0
    assert filled([(1, 5)]).now("t") == 0
    assert filled([(1, 5)]).history("t") == []


def test_rare_samples_are_spread_over_the_seconds_between():
    rates = filled([(0, 0), (15, 150), (16, 150)])
    assert rates.history("t")[:15] == pytest.approx([10] * 15)
    assert rates.history("t")[15] == 0


def test_after_a_long_rest_the_rate_is_the_mean_since():
    assert filled([(0, 0), (15, 150)]).now("t") == pytest.approx(10)


def test_a_counter_that_falls_starts_afresh():
    rates = filled([(0, 1000), (1, 1100), (2, 0), (3, 7)])
    assert rates.now("t") == 7
    assert rates.history("t") == [7]


def test_old_samples_and_gone_counters_are_forgotten():
    rates = filled((float(s), s) for s in range(1000))
    assert len(rates._samples["t"]) <= KEPT_S + 1
    rates.add(1000, {})
    assert rates.history("t") == []
