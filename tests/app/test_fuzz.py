"""Declarations with any values: declared, or refused with one message in words, where they stand."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from millstream.app import graph
from millstream.event import Event
from millstream.settings import MillstreamError, Settings


class Order(Event):
    user: str
    amount: float
    at: datetime
    note: str | None


class NoEvent:
    pass


def one(orders):
    return orders


def two(orders, more):
    return orders


WILD = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3),
    st.timedeltas() | st.just(object()) | st.just(Order) | st.just(NoEvent) | st.just(one) | st.just(two) | st.just(int),
    st.lists(st.integers() | st.text(max_size=3), max_size=2),
    st.sets(st.integers(), max_size=1),
    st.dictionaries(st.text(max_size=3) | st.integers(), st.text(max_size=3) | st.integers(), max_size=2),
    st.sampled_from(["2 hours", "-5 seconds", "9" * 30 + " weeks", "1e400 hours", "user", "at", "note", "realtime", "orders"]),
    st.sampled_from([{"retention.ms": "1000"}, {"retentionms": "1"}, {"retention.ms": 1000}, {"": ""}, ["user", "at"]]),
)  # fmt: skip
TAME = {
    "topic": {"name": "orders", "event": Order, "key": "user", "event_time": "at", "lateness": "2 hours", "config": {}},
    "table": {"name": "users", "source": ms.postgres("ops", table="users")},
    "view": {"key": "user", "name": "totals", "every": "1 second"},
    "stream": {"to": "copies", "key": "user", "name": "copied", "every": "1 second"},
    "alert": {"to": "large", "key": "user", "name": "larger", "every": "10 seconds", "latency": "realtime"},
}
MORE = {"topic": ["future", "idle", "partitions", "format"], "table": [], "view": [], "stream": [], "alert": []}
QUIET = settings(max_examples=150, deadline=None)


def some(kind):
    """A declaration's parameters, up to two of which are anything."""
    names = [*TAME[kind], *MORE[kind]]
    wild = st.dictionaries(st.sampled_from(names), WILD, min_size=1, max_size=2)
    return wild.map(lambda changed: TAME[kind] | changed)


def declared(declare):
    """Declare, and look at everything that follows from it; a refusal is a sentence."""
    try:
        app = declare()
    except MillstreamError as error:
        assert str(error).strip() and "object at 0x" not in str(error).replace("<object object at 0x", "")
        return
    found = graph.graph(app, Settings())
    assert len({t.name for t in found.topics}) == len(found.topics)
    json.dumps(graph.describe(app))


@QUIET
@given(some("topic"))
def test_any_topic(given):
    def declare():
        app = ms.App("shop")
        app.topic(given["name"], given["event"], **{k: v for k, v in given.items() if k not in ("name", "event")})
        return app

    declared(declare)


@QUIET
@given(some("table"))
def test_any_table(given):
    def declare():
        app = ms.App("shop")
        app.table(given["name"], source=given["source"])
        return app

    declared(declare)


@QUIET
@given(WILD, WILD, WILD)
def test_any_source(database, table, schema):
    def declare():
        app = ms.App("shop")
        app.table("users", source=ms.postgres(database, table=table, schema=schema))
        return app

    declared(declare)


@QUIET
@given(st.sampled_from(["view", "stream", "alert"]).flatmap(lambda kind: st.tuples(st.just(kind), some(kind))), WILD)
def test_any_query(kind_given, function):
    kind, given = kind_given
    for inner in (one, function):

        def declare(inner=inner):
            app = ms.App("shop")
            orders = app.topic("orders", Order, event_time="at")
            getattr(app, kind)(orders, **given)(inner)
            return app

        declared(declare)


@QUIET
@given(st.sampled_from(["view", "stream", "alert"]), st.lists(WILD, max_size=2), WILD)
def test_any_inputs(kind, inputs, name):
    def declare():
        app = ms.App("shop")
        getattr(app, kind)(*inputs, **(TAME[kind] | {"name": "named"}))(one)
        return app

    declared(declare)

    def named():
        return ms.App(name)

    declared(named)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lateness": -5}, r"topic 'orders': lateness: expected a duration such as .*, got -5"),
        ({"lateness": "-5 seconds"}, "topic 'orders': lateness: expected a duration"),
        ({"lateness": None}, "topic 'orders': lateness: expected a duration"),
        ({"lateness": "9" * 30 + " weeks"}, "topic 'orders': lateness: expected a duration of at most"),
        ({"future": 5}, "topic 'orders': future: expected a duration"),
        ({"config": {"retentionms": "1"}}, r"config has the setting 'retentionms'.*Did you mean 'retention\.ms'"),
        ({"config": {"retention.ms": 1}}, "config takes Kafka's names and values as text, got 'retention.ms': 1"),
        ({"config": "retention.ms=1"}, "config must be a dict of Kafka's names"),
        ({"format": "json"}, "format must be"),
        ({"key": 5}, "key names the field 5, which Order lacks"),
        ({"key": ["user"]}, "key names the field"),
        ({"event": "Order"}, "expected a subclass of ms.Event"),
        ({"partitions": "3"}, "partitions must be 1 to"),
    ],
)
def test_what_is_wrong_with_a_topic_is_said_with_its_name(changed, message):
    with pytest.raises(MillstreamError, match=message):
        ms.App("shop").topic(**(TAME["topic"] | changed))


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("view", {"every": -1}, "every: expected a duration"),
        ("view", {"every": timedelta(0)}, "every: expected a positive duration"),
        ("view", {"key": 5}, "key names columns of the function's result, got 5"),
        ("view", {"name": 5}, "expected a name of the view"),
        ("stream", {"to": 5}, "expected a topic name"),
        ("stream", {"to": None}, "expected a topic name"),
        ("alert", {"latency": "fast"}, 'latency must be "realtime"'),
        ("alert", {"latency": ["realtime"]}, 'latency must be "realtime"'),
    ],
)
def test_what_is_wrong_with_a_query_is_said(kind, changed, message):
    app = ms.App("shop")
    orders = app.topic("orders", Order, event_time="at")
    with pytest.raises(MillstreamError, match=message):
        getattr(app, kind)(orders, **(TAME[kind] | changed))(one)


@pytest.mark.parametrize("function", [5, None, "one", Order, lambda *orders: orders, lambda *, orders: orders])
def test_what_is_no_function_of_the_inputs_is_said(function):
    app = ms.App("shop")
    orders = app.topic("orders", Order, event_time="at")
    with pytest.raises(MillstreamError, match=r"a function|takes \d parameters|positional"):
        app.view(orders, key="user", name="totals")(function)


def test_the_settings_of_topics_are_those_that_the_log_knows():
    from millstream.app.topics import SETTINGS
    from millstream.log.config import SETTINGS as KNOWN

    assert set(KNOWN) == SETTINGS
