"""Quotas by values: precedence, rates over windows, how long to wait, what is refused."""

import math

import pytest

from millstream.broker.security.quotas import (
    CONNECTION,
    FETCH,
    IP_KEYS,
    KEYS,
    MUTATION,
    PRODUCE,
    REQUEST,
    Quotas,
    wrong_entity,
    wrong_limit,
)

U, C = ("user", "u"), ("client-id", "c")
DU, DC = ("user", None), ("client-id", None)
# Kafka's order, the strongest first, each as (client-id, user)
ORDER = [(C, U), (DC, U), (U,), (C, DU), (DC, DU), (DU,), (C,), (DC,)]


def quotas(entities, window=1, count=11):
    return Quotas({tuple(e): limits for e, limits in entities.items()}, (window, count), (1, 10))


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
    made = Quotas(entities, (1, 11), (1, 11))
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


def test_the_connections_of_an_address_are_limited_by_its_own_limit_or_the_default():
    made = quotas({(("ip", "10.0.0.1"),): {CONNECTION: 2.0}, (("ip", None),): {CONNECTION: 1.0}})
    assert not made.active  # no request has to be measured for it
    assert [made.connect("10.0.0.1", 0) for _ in range(21)] == [0] * 20 + [500]  # 10 s worth of it, then 21 for 10.5 s
    assert [made.connect("10.0.0.2", 0) for _ in range(11)] == [0] * 10 + [1000]
    assert made.connect("::ffff:10.0.0.1", 0) > 0  # the same, on a socket that takes both kinds
    assert made.connect("10.0.0.1", 11_000) == 0
    assert quotas({(("ip", "10.0.0.1"),): {CONNECTION: 2.0}}).connect("10.0.0.2", 0) == 0


def test_connections_that_were_not_made_do_not_count():
    made = quotas({(("ip", "::1"),): {CONNECTION: 1.0}})
    for _ in range(10):
        assert made.connect("0:0:0:0:0:0:0:1", 0) == 0
    for now in range(0, 1000, 10):
        assert made.connect("::1", now) > 0
    assert made.connect("::1%lo", 11_000) == 0


def test_partitions_are_strictly_refused_once_too_many_were_made():
    """StrictControllerMutationQuota: no limit on the last one that is let through."""
    made = quotas({(U,): {MUTATION: 2.0}})
    now = 1_000_000
    assert made.mutate("u", "c", 20, True, now) == (True, 0)
    assert made.mutate("u", "c", 10, True, now) == (True, 0)  # nothing is left, but nothing is owed
    assert made.mutate("u", "c", 1, True, now) == (False, 5000)
    assert made.mutate("u", "c", 1, True, now + 4999) == (False, 1)
    assert made.mutate("u", "c", 1, True, now + 5000) == (True, 0)
    assert made.mutate("v", "c", 1000, True, now) == (True, 0)  # has no limit


def test_earlier_clients_get_their_partitions_and_wait_afterwards():
    made = quotas({(DC,): {MUTATION: 2.0}})
    now = 1_000_000
    assert made.mutate("u", "c", 20, False, now) == (True, 0)
    assert made.mutate("u", "c", 5, False, now) == (True, 2500)
    assert made.mutate("u", "c", 5, False, now) == (True, 5000)
    assert made.mutate("u", "d", 5, False, now) == (True, 0)
    assert made.mutate("u", "c", 0, False, now + 5000) == (True, 0)


def test_buckets_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("millstream.broker.security.quotas.MAX_RATES", 10)
    made = quotas({(DC,): {MUTATION: 1.0}})
    for i in range(100):
        made.mutate("u", f"c{i}", 15, True, 1_000_000 + i)
    assert len(made._buckets) <= 10


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        ([], 0),
        ([("user", "u")], 1),
        ([("client-id", None)], 1),
        ([("user", "u"), ("client-id", "c")], 1),
        ([("user", "u"), ("user", "v")], 0),
        ([("user", "")], 0),
        ([("ip", "127.0.0.1")], 1),
        ([("ip", "fe80::1")], 1),
        ([("ip", None)], 1),
        ([("ip", "localhost")], 0),
        ([("ip", "127.0.0.1"), ("user", "u")], 0),
        ([("x", "y")], 0),
    ],
)
def test_entities(parts, right):
    assert (wrong_entity(parts) is None) == bool(right)


@pytest.mark.parametrize(
    ("keys", "key", "value", "right"),
    [(KEYS, PRODUCE, 1, 1), (KEYS, PRODUCE, 0, 0), (KEYS, PRODUCE, -1, 0), (KEYS, PRODUCE, 1.5, 0),
     (KEYS, PRODUCE, math.nan, 0), (KEYS, PRODUCE, math.inf, 0), (KEYS, PRODUCE, 1e19, 0), (KEYS, REQUEST, 0.5, 1),
     (KEYS, MUTATION, 0.5, 1), (KEYS, MUTATION, 0, 0), (KEYS, CONNECTION, 1, 0), (KEYS, "x", 1, 0),
     (IP_KEYS, CONNECTION, 1, 1), (IP_KEYS, CONNECTION, 1.5, 0), (IP_KEYS, CONNECTION, 2**31, 0), (IP_KEYS, PRODUCE, 1, 0)],
)  # fmt: skip
def test_limits(keys, key, value, right):
    assert (wrong_limit(keys, key, value) is None) == bool(right)
