"""Every output over every combination of inputs, latency and kind of function: right rows, or refused in words.

Alerts are read where they are delivered, once each.

What is right is what the same function makes of the same rows as plain frames. A cell that is refused is refused by the decorator
or by the analysis before it starts: none fails while it runs.
"""

import inspect
import json
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import functions as F

import millstream as ms
from millstream.app.names import SCHEMAS
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.deliver import alerts
from millstream.event import encode
from millstream.settings import MillstreamError
from millstream.spark import provenance
from millstream.spark.analysis import aggregates
from millstream.spark.kafka import messages
from millstream.spark.operators.windows import flatten
from millstream.testing.rows import frame
from tests.brokers import fresh, wait_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

START = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=10)
END = 3 * 24 * 3600  # seconds; closes every window before it
SCHEMA = [("user", "string"), ("city", "string"), ("since", "timestamp")]
USERS = [
    {"user": "ann", "city": "Oslo", "since": START},
    {"user": "bob", "city": "New York", "since": START + timedelta(seconds=90)},
    {"user": "eve", "city": "Oslo", "since": START + timedelta(seconds=20)},
]


class Click(ms.Event):
    user: str
    page: str
    n: int
    at: datetime


def click(user, page, n, seconds):
    return Click(user=user, page=page, n=n, at=START + timedelta(seconds=seconds))


CLICKS = [
    click("ann", "a b", 1, 0),
    click("bob", "b", 2, 30),
    click("ann", "c d", 3, 61),
    click("zoe", "e", 4, 70),
    click("end", "z", 9, END),
]
ORDERS = [click("ann", "a b", 2, 10), click("bob", "q", 5, 35), click("cat", "r s", 6, 200), click("end", "z", 9, END)]

OUTPUTS = ["view", "stream", "alert", "realtime"]
INPUTS = ["topic", "union", "join", "topic and table", "table"]
FUNCTIONS = ["map", "group", "window", "explode", "udf"]
# The other kinds of windows share the cells' inputs among them: every output meets each of them.
WINDOWS = {
    "topic": "hopping",
    "union": "session",
    "join": "calendar",
    "topic and table": "cumulating",
    "table": "calendar",
}


def together(inputs, frames):
    """The inputs as one frame with user, words, n and time."""
    if inputs == "table":
        return frames[0].selectExpr("user", "city AS words", "1 AS n", "since AS time")
    one = frames[0].selectExpr("user", "page AS words", "n", "at AS time", "_origin")
    if inputs == "union":
        return one.unionByName(frames[1].selectExpr("user", "page AS words", "n", "at AS time", "_origin"))
    if inputs == "join":
        other = frames[1].selectExpr("user AS buyer", "n AS m", "at AS bought", "_origin")
        return one.join(other, F.expr("user = buyer AND bought BETWEEN time AND time + INTERVAL 1 MINUTE"))
    return one.join(frames[1].select("user", "city"), "user", "left") if inputs == "topic and table" else one


def function(inputs, kind):
    """A function of that kind over the inputs."""

    def shaped(*frames):
        rows = together(inputs, frames)
        if kind == "map":
            return rows.where("n != 4")
        if kind == "explode":
            return rows.withColumn("word", F.explode(F.split("words", " ")))
        if kind == "udf":
            return rows.withColumn("words", F.udf(lambda text: text.upper())("words"))
        if inputs == "join":  # of the two causes one is named
            rows = rows.select("user", "n", "time", frames[0]["_origin"])
        if kind == "cumulating":
            rows = rows.transform(ms.cumulating, "time", "2 minutes", "1 minute", name="minute")
        if kind == "calendar":
            rows = rows.transform(ms.calendar, "time", "day", "Europe/Oslo", name="minute")
        by = {
            "group": [],
            "window": [ms.tumbling("time", "1 minute").alias("minute")],
            "hopping": [ms.hopping("time", "1 minute", "20 seconds").alias("minute")],
            "session": [ms.session("time", "40 seconds").alias("minute")],
        }.get(kind, ["minute"])
        by = ["user", *by]
        cause = [] if inputs == "table" else [F.max_by("_origin", "n").alias("_origin")]
        return rows.groupBy(*by).agg(F.count("*").alias("count"), *cause)

    shaped.__name__ = kind
    shaped.__signature__ = inspect.signature((lambda a: None) if inputs in ("topic", "table") else (lambda a, b: None))
    return shaped


def refusal(output, inputs, kind):
    """Where a cell is refused, and what it says; None when it runs."""
    grouped = kind == "group" or is_windowed(kind)
    if inputs == "table" and output != "view":
        return "declared", "tables alone.*Keep the result as a view"
    if output == "realtime" and inputs == "topic and table":
        return "declared", 'cannot follow the table.*latency="micro-batch"'
    if output == "realtime" and inputs == "join":
        return "analysis", 'real-time mode cannot run .*a join of two streams.*latency="micro-batch"'
    if output == "realtime" and kind == "session":
        return "analysis", 'real-time mode cannot run .*a session window.*latency="micro-batch"'
    if output == "realtime" and kind == "udf":
        return "analysis", 'real-time mode cannot run a Python UDF.*latency="micro-batch"'
    if output == "view" and inputs in ("union", "join") and not grouped:
        return "analysis", "have no order among them. Group by the view's key"
    return None


def key_of(inputs, kind):
    return ["user", "minute"] if is_windowed(kind) else ["user", "word"] if kind == "explode" else ["user"]


def is_windowed(kind):
    return kind == "window" or kind in WINDOWS.values()


@pytest.fixture(scope="module")
def log(kafka):
    """The topics and the table's changelog, filled."""
    names = {name: fresh(name) for name in ("clicks", "orders", "users")}
    ensure_topics(
        kafka,
        [(names[n], 1, {}) for n in ("clicks", "orders")]
        + [(names["users"], 1, {"cleanup.policy": "compact"}), (SCHEMAS, None, None)],
    )
    client = producer(kafka)
    for topic, events in (("clicks", CLICKS), ("orders", ORDERS)):
        for event in events:
            client.produce(names[topic], key=event.user, value=encode(event))
    columns = [{"name": n, "kind": k, "nullable": n != "user"} for n, k in SCHEMA]
    client.produce(
        SCHEMAS, key=names["users"], value=json.dumps({"topic": names["users"], "columns": columns, "key": ["user"]})
    )
    for row in USERS:
        after = row | {"since": row["since"].isoformat()}
        client.produce(
            names["users"], key=json.dumps({"user": row["user"]}), value=json.dumps({"op": "r", "after": after})
        )
    client.flush()
    return names


def declare(app, log, output, inputs, kind):
    """Declare one cell; returns its query."""
    options = {"key": "user", "event_time": "at", "lateness": LATENESS, "partitions": 1}
    if not app.topics:
        app.topic(log["clicks"], Click, **options)
        app.topic(log["orders"], Click, **options)
        app.table(log["users"], source=ms.postgres("ops", table="users"))
    clicks, orders, users = app.topics[log["clicks"]], app.topics[log["orders"]], app.tables[log["users"]]
    given = {
        "topic": [clicks],
        "union": [clicks, orders],
        "join": [clicks, orders],
        "topic and table": [clicks, users],
        "table": [users],
    }[inputs]
    name, to = f"{kind}_{output}", fresh("out")
    soon = "500 ms"
    if output == "view":
        app.view(*given, key=key_of(inputs, kind), name=name, every=soon)(function(inputs, kind))
    elif output == "stream":
        app.stream(*given, to=to, key="user", name=name, every=soon)(function(inputs, kind))
    elif output == "alert":
        app.alert(*given, to=to, key="user", name=name, latency="micro-batch", every=soon)(function(inputs, kind))
    else:
        app.alert(*given, to=to, key="user", name=name, every="5 seconds")(function(inputs, kind))
    return app.queries[name]


def batch(spark, log, query, inputs):
    """What the function makes of the same rows as plain frames."""
    clicks, orders = frame(spark, log["clicks"], CLICKS), frame(spark, log["orders"], ORDERS)
    users = frame(spark, "users", USERS)
    frames = {
        "topic": [clicks],
        "union": [clicks, orders],
        "join": [clicks, orders],
        "topic and table": [clicks, users],
        "table": [users],
    }[inputs]
    return query.function(*frames)


def expected(result, output, kind, keys):
    """The rows that must come out in the end, as JSON texts."""
    once = output in ("stream", "alert") or (output == "view" and kind == "session")
    if once and is_windowed(kind):  # each window once, when it has closed
        result = result.where(F.col("minute.end") <= F.lit(START + timedelta(seconds=END) - LATENESS))
    if output == "view":  # of rows with the same key the newest, which is the last of ours
        ends = ["minute_end"] if kind == "cumulating" else []
        key = [f"{k}_start" if k == "minute" else k for k in keys] + ends
        rows = flatten(result).drop("_origin").toArrow().to_pylist()
        return texts({json.dumps([row[k] for k in key], default=str): row for row in rows}.values())
    values = messages(provenance.merged(result, ""), ("user",)).collect()
    return texts(json.loads(row.value) for row in values)


def texts(rows):
    return sorted(json.dumps(row, default=lambda v: v.astimezone(UTC).isoformat(), sort_keys=True) for row in rows)


def newest(found, output, kind, grouped):
    """The rows of a topic; of those that change, the last of each key."""
    if not grouped or (is_windowed(kind) and output != "realtime"):
        return texts(found)
    return texts({json.dumps([row["user"], row.get("minute")]): row for row in found}.values())


def read(kafka, topic):
    return list(tail(kafka, topic, start="earliest", follow=False))


@contextmanager
def delivering(kafka, app, deliveries):
    """What passes alerts on to their topics, while inside."""
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=alerts.run, args=(app, deliveries, kafka), kwargs={"ready": lambda _: ready.set(), "stop": stop}
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_cells(spark, runner, kafka, views, log, output, inputs):
    app = ms.App(fresh("m").replace("-", "_"))
    right = {}
    for kind in [*FUNCTIONS, WINDOWS[inputs]]:
        refused = refusal(output, inputs, kind)
        if refused and refused[0] == "declared":
            with pytest.raises(MillstreamError, match=refused[1]):
                declare(app, log, output, inputs, kind)
            continue
        query = declare(app, log, output, inputs, kind)
        right[query.name] = (
            None if refused else expected(batch(spark, log, query, inputs), output, kind, query.output.key)
        )
    if not app.queries:
        return
    ensure_topics(kafka, [(t.name, 1, {}) for q in app.queries.values() for t in q.output.topics(app.name, q)])
    deliveries = [d for q in app.queries.values() for d in q.output.deliveries(app.name, q)]

    def result(query):
        kind, grouped = query.name.partition("_")[0], aggregates(batch(spark, log, query, inputs))
        if output == "view":
            with psycopg.connect(views, row_factory=dict_row) as connection:
                return texts(connection.execute(f'select * from "{app.name}"."{query.output.to}"').fetchall())
        found = read(kafka, query.output.to)
        if output in ("alert", "realtime"):
            identities = [dict(m.headers)["origin"] for m in found]
            assert len(set(identities)) == len(identities), f"{query.name}: rows share an identity: {identities}"
        return newest([json.loads(m.value) for m in found], output, kind, grouped)

    # Real-time queries hold their task slots for as long as they run: one after the other.
    rounds = [[q] for q in app.queries.values()] if output == "realtime" else [list(app.queries.values())]
    for queries in rounds:
        mine = [d for d in deliveries if d.query in {q.name for q in queries}]
        with delivering(kafka, app.name, mine), runner.running(app.name, queries, topics=app.topics) as facts:
            for query in queries:
                kind = query.name.partition("_")[0]
                refused = refusal(output, inputs, kind)
                if refused:
                    wait_until(lambda q=query: facts(q.name).get("state") == "failed", f"{query.name} is refused", 90)
                    said = facts(query.name)
                    assert re.search(refused[1], said["error"]), said["error"]
                    assert said["batch"] == -1, "it was refused only while it ran"
                    continue
                try:
                    wait_until(lambda q=query: result(q) == right[q.name], query.name, 90)
                except (AssertionError, psycopg.Error):
                    assert facts(query.name).get("error") is None
                    assert result(query) == right[query.name], query.name
