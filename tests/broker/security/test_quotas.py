"""Quotas by values: precedence, rates over windows, how long to wait, what is refused."""

import math

import pytest

from millstream.broker.security.quotas import FETCH, PRODUCE, REQUEST, Quotas, Rate, wrong_entity, wrong_limit

U, C = ("user", "u"), ("client-id", "c")
DU, DC = ("user", None), ("client-id", None)
# Kafka's order, the strongest first, each as (client-id, user)
ORDER = [(C, U), (DC, U), (U,), (C, DU), (DC, DU), (DU,), (C,), (DC,)]


def quotas(entities, window=1, count=11):
    return Quotas({tuple(e): limits for e, limits in entities.items()}, window, count)


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_strongest_limit_counts(first):
    made = quotas({entity: {PRODUCE: 100.0 + i} for i, entity in enumerate(ORDER) if i >= first})
    limit, _ = made.find(PRODUCE, "u", "c")
    assert limit == 100 + first
    assert made.find(FETCH, "u", "c") is None


def test_a_limit_of_another_kind_does_not_hide_one():
    made = quotas({(C, U): {FETCH: 1.0}, (U,): {PRODUCE: 2.0}})
    assert made.find(PRODUCE, "u", "c") == (2.0, ("u", None))


def test_default_limits_are_for_each_user_and_client_by_themselves():
    made = quotas({(DU,): {PRODUCE: 10.0}})
    assert made.record(PRODUCE, "a", "c", 200, 0) > 0
    assert made.record(PRODUCE, "b", "c", 50, 0) == 0
    made = quotas({(DC,): {PRODUCE: 10.0}})
    assert made.record(PRODUCE, "a", "x", 200, 0) > 0
    assert made.record(PRODUCE, "a", "y", 50, 0) == 0
    assert made.record(PRODUCE, "b", "x", 1, 0) > 0  # of client x, whoever it is


def test_a_burst_of_all_but_one_window_is_free_and_then_the_wait_is_what_brings_the_rate_back():
    made = quotas({(U,): {PRODUCE: 100.0}})
    assert made.burst(PRODUCE, "u", "c") == 1000
    assert made.record(PRODUCE, "u", "c", 1000, 0) == 0
    assert made.record(PRODUCE, "u", "c", 500, 0) == 5000  # 150/s over 10 s: half too much, 5 s
    assert made.record(PRODUCE, "u", "c", 0, 11_000) == 0  # everything is out of the windows
    assert made.burst(FETCH, "u", "c") == math.inf


def test_what_is_not_sent_is_taken_back():
    made = quotas({(U,): {FETCH: 100.0}})
    assert made.record(FETCH, "u", "c", 2000, 0) > 0
    made.record(FETCH, "u", "c", -2000, 0)
    assert made.record(FETCH, "u", "c", 1000, 1) == 0


def test_a_steady_client_below_its_limit_never_waits_and_at_twice_the_limit_comes_down_to_it():
    made = quotas({(U,): {PRODUCE: 1000.0}})
    assert all(made.record(PRODUCE, "u", "c", 98, t) == 0 for t in range(0, 60_000, 100))
    made = quotas({(U,): {PRODUCE: 1000.0}})
    now, sent = 0, 0
    while now < 120_000:  # a client that keeps to what it is told
        sent += 200
        now += 100 + made.record(PRODUCE, "u", "c", 200, now)
    assert 115_000 <= sent <= 135_000  # 1000/s for 120 s, and a burst of 10 s


def test_the_share_of_the_threads_costs_at_most_a_window():
    made = quotas({(U,): {REQUEST: 10.0}})
    assert made.requests
    assert made.record(REQUEST, "u", "c", 1_000_000, 0) == 1000


def test_limits_that_change():
    entities = {}
    made = Quotas(entities, 1, 11)
    assert not made.active
    assert made.record(PRODUCE, "u", "c", 1e9, 0) == 0
    entities[(U,)] = {PRODUCE: 1.0}
    made.changed()
    assert made.active
    assert made.record(PRODUCE, "u", "c", 1e9, 0) > 0
    del entities[(U,)]
    made.changed()
    assert not made.active


def test_rates_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("millstream.broker.security.quotas.MAX_RATES", 10)
    made = quotas({(DC,): {PRODUCE: 100.0}})
    for i in range(100):
        made.record(PRODUCE, "u", f"c{i}", 10, i)
    assert len(made._rates) <= 10
    assert len(made._found) <= 10


def test_a_rate_forgets():
    rate = Rate(1, 11)
    for second in range(30):
        rate.add(100, second * 1000)
    assert 90 <= rate.value(29_500) <= 110
    assert rate.value(45_000) == 0
    assert rate.idle(45_000)


@pytest.mark.parametrize(
    ("kinds", "right"),
    [
        ([], 0),
        (["user"], 1),
        (["client-id"], 1),
        (["user", "client-id"], 1),
        (["user", "user"], 0),
        (["ip"], 0),
        (["x"], 0),
    ],
)
def test_entities(kinds, right):
    assert (wrong_entity(kinds) is None) == bool(right)


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [(PRODUCE, 1, 1), (PRODUCE, 0, 0), (PRODUCE, -1, 0), (PRODUCE, 1.5, 0), (PRODUCE, math.nan, 0), (PRODUCE, math.inf, 0),
     (REQUEST, 0.5, 1), ("controller_mutation_rate", 1, 0), ("x", 1, 0)],
)  # fmt: skip
def test_limits(key, value, right):
    assert (wrong_limit(key, value) is None) == bool(right)
