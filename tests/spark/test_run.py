"""An application's queries on a log and a store of views: what they write, what they say, how they fail and go on."""

import json
import random
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from pyspark.sql import functions as F

from millstream.app.inputs import Table, Topic
from millstream.app.names import SCHEMAS
from millstream.app.outputs import Alert, Stream, View
from millstream.app.query import Query
from millstream.app.sources import PostgresTable
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.event import Event, encode
from millstream.monitor.lag import group_lag
from millstream.settings import Settings
from millstream.spark.operators.windows import tumbling
from millstream.stores import postgresql
from tests.brokers import fresh

pytestmark = pytest.mark.system

SOON = timedelta(milliseconds=200)
START = datetime(2013, 1, 1, tzinfo=UTC)


class Departure(Event):
    tailnum: str | None
    origin: str
    delay: float
    departed_at: datetime


@pytest.fixture
def departures(kafka):
    name = fresh("departures")
    ensure_topics(kafka, [(name, 2, {})])
    lateness, idle = timedelta(hours=2), timedelta(seconds=2)
    return Topic(name, Departure, key="tailnum", event_time="departed_at", lateness=lateness, idle=idle)


def send(kafka, topic, events):
    """Send events, or bytes instead of one; times are hours since START."""
    client = producer(kafka)
    for event in events:
        if isinstance(event, bytes):
            client.produce(topic.name, value=event)
            continue
        tailnum, origin, delay, hours = event
        made = Departure(tailnum=tailnum, origin=origin, delay=delay, departed_at=START + timedelta(hours=hours))
        client.produce(topic.name, key=tailnum, value=encode(made))
    client.flush()


def read(kafka, topic):
    return list(tail(kafka, topic, start="earliest", follow=False))


def rows(views, app, view):
    with psycopg.connect(views) as connection:
        return sorted(connection.execute(f'select * from "{app}"."{view}"').fetchall(), key=repr)


def count_by_hour(departures):
    return departures.groupBy("origin", tumbling("departed_at", "1 hour").alias("hour")).agg(
        F.count("*").alias("flights")
    )


def view(topic, function=count_by_hour, key=("origin", "hour"), name="by_hour"):
    return Query(name, (topic,), function, View(name, key), every=SOON)


def at(hours):
    return START + timedelta(hours=hours)


def test_view_counts_late_rows_and_dead_letters(runner, kafka, views, departures, until):
    app = fresh("app").replace("-", "_")
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1), ("N2", "JFK", 1.0, 0.2), ("N1", "LGA", 1.0, 1.5), b"{", b"\xff"])
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 5, "all read", 60)
        until(lambda: facts("dead_letters").get("dead") == 2, "two dead letters", 60)
        send(kafka, departures, [("N1", "JFK", 1.0, 9.0)])
        until(lambda: (facts("by_hour").get("watermark") or "") >= "2013-01-01T07", "the watermark moves", 60)
        # Six input rows in three groups: two hours are over, and hour 7 is not, though its event is behind the watermark.
        late = [("N1", "JFK", 1.0, 0.3), ("N2", "JFK", 1.0, 0.4), ("N3", "LGA", 1.0, 5.9), ("N3", "LGA", 1.0, 5.95)]
        send(kafka, departures, [*late, ("N1", "JFK", 1.0, 7.5), ("N2", "JFK", 1.0, 6.9999)])
        until(lambda: facts("by_hour").get("dropped") == 5, "five dropped", 60)
        until(lambda: facts("by_hour").get("input_rows") == 12, "all read", 60)
        until(lambda: sum(lag.lag for lag in group_lag(kafka, f"{app}.by_hour")) == 0, "committed", 30)
        assert facts("by_hour")["mode"] == "micro-batch"
    assert facts("by_hour")["state"] == "stopped"
    assert rows(views, app, "by_hour") == [
        ("JFK", at(0), at(1), 2),
        ("JFK", at(7), at(8), 1),
        ("JFK", at(9), at(10), 1),
        ("LGA", at(1), at(2), 1),
    ]
    letters = [json.loads(m.value) for m in read(kafka, f"{app}.dead_letters")]
    assert sorted(letter["reason"] for letter in letters) == ["the value is not JSON", "the value is not UTF-8"]
    assert {letter.get("encoding") for letter in letters} == {None, "base64"}
    assert {m.key.decode() for m in read(kafka, f"{app}.dead_letters")} == {
        f"{x['topic']}-{x['partition']}-{x['offset']}" for x in letters
    }


def test_continues_where_it_stopped_and_starts_anew_without_its_checkpoint(
    runner, kafka, views, departures, until, tmp_path
):
    import shutil

    app = fresh("app").replace("-", "_")
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1)])
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 1, "all read", 60)
    send(kafka, departures, [("N1", "JFK", 1.0, 0.2)])
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 1 and facts("by_hour")["batch"] >= 1, "the rest read", 60)
    assert rows(views, app, "by_hour") == [("JFK", at(0), at(1), 2)]
    shutil.rmtree(tmp_path / "checkpoints" / app / "by_hour")
    with psycopg.connect(views) as connection:
        connection.execute(f'insert into "{app}"."by_hour" values (%s, %s, %s, 99)', ("old", at(0), at(1)))
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("state") == "failed", "the view is not emptied unasked", 60)
        assert "views rebuild" in facts("by_hour")["error"]
    assert rows(views, app, "by_hour") == [("JFK", at(0), at(1), 2), ("old", at(0), at(1), 99)]
    postgresql.rebuild(Settings(postgres=views), app, "by_hour")
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 2, "everything read again", 60)
    assert rows(views, app, "by_hour") == [("JFK", at(0), at(1), 2)]


def test_newest_row_per_key(runner, kafka, views, departures, until):
    app = fresh("app").replace("-", "_")
    latest = view(departures, lambda d: d.select("tailnum", "delay", "_origin"), ("tailnum",), "latest")
    events = [(f"N{random.randrange(5)}", "JFK", float(i), 0.0) for i in range(200)]
    with runner.running(app, [latest]) as facts:
        for begin in range(0, 200, 50):
            send(kafka, departures, events[begin : begin + 50])
            until(lambda seen=begin + 50: facts("latest").get("input_rows") == seen, "all read", 60)
    assert rows(views, app, "latest") == sorted({e[0]: (e[0], e[2]) for e in events}.values())


def test_alert_in_real_time_and_in_micro_batches(runner, kafka, departures, until):
    app = fresh("app").replace("-", "_")
    late = lambda d: d.where("delay > 120")  # noqa: E731
    quick = Query("quick", (departures,), late, Alert(fresh("quick"), ("tailnum",)), True, timedelta(seconds=5))
    slow = Query("slow", (departures,), late, Alert(fresh("slow"), ("tailnum",)), every=SOON)
    with runner.running(app, [quick, slow]) as facts:
        send(
            kafka, departures, [("N1", "JFK", 150.0, 0.1), ("N2", "JFK", 1.0, 0.2), b"oops", ("N3", "LGA", 130.0, 0.3)]
        )
        for query in ("quick", "slow"):
            found = until(lambda q=query: (m := read(kafka, f"_{app}.{q}")) and len(m) == 2 and m, "two alerts", 60)
            assert {m.key for m in found} == {b"N1", b"N3"}
            origins = {dict(m.headers)["origin"].decode() for m in found}
            assert all(o.startswith(f"{departures.name}-") for o in origins)
            assert len(origins) == 2
            assert set(json.loads(found[0].value)) == {"tailnum", "origin", "delay", "departed_at"}
        until(lambda: facts("quick").get("input_rows", 0) >= 4, "progress in real time", 30)
        assert facts("quick")["mode"] == "realtime"


def test_stream_joins_a_table_as_it_is_when_the_event_comes(runner, kafka, departures, until):
    app, name = fresh("app").replace("-", "_"), fresh("planes")
    table = Table(name, PostgresTable("ops", "planes"))
    ensure_topics(kafka, [(name, 1, {"cleanup.policy": "compact"}), (SCHEMAS, None, None)])
    client = producer(kafka)
    columns = [
        {"name": "tailnum", "kind": "string", "nullable": False},
        {"name": "seats", "kind": "long", "nullable": True},
    ]
    client.produce(SCHEMAS, key=name, value=json.dumps({"topic": name, "columns": columns, "key": ["tailnum"]}))

    def change(tailnum, seats):
        client.produce(
            name,
            key=json.dumps({"tailnum": tailnum}),
            value=json.dumps({"op": "u", "after": {"tailnum": tailnum, "seats": seats}}),
        )
        client.flush()

    to = fresh("enriched")
    join = lambda d, planes: d.join(planes, "tailnum", "left")  # noqa: E731
    stream = Query("enriched", (departures, table), join, Stream(to, ("tailnum",)), every=SOON)
    change("N1", 0)
    with runner.running(app, [stream]) as facts:
        for seats in range(1, 6):
            change("N1", seats)
            send(kafka, departures, [("N1", "JFK", float(seats), 0.1), (None, "JFK", float(seats), 0.1)])
            until(lambda n=seats: facts("enriched").get("input_rows") == 2 * n, "read", 60)
    found = [json.loads(m.value) for m in read(kafka, to)]
    assert sorted((f["delay"], f["seats"]) for f in found if f["tailnum"]) == [(float(s), s) for s in range(1, 6)]
    assert [f["seats"] for f in found if not f["tailnum"]] == [None] * 5
    assert {m.key for m in read(kafka, to)} == {b"N1", None}
    assert all("origin" in dict(m.headers) for m in read(kafka, to))


def test_wrong_functions_fail_in_words_and_the_others_go_on(runner, kafka, views, departures, until):
    app = fresh("app").replace("-", "_")
    grouped = lambda d: d.groupBy("origin").count()  # noqa: E731
    shout = lambda d: d.withColumn("origin", F.udf(lambda text: text.upper())("origin"))  # noqa: E731
    wrong = {
        "no_key": view(departures, count_by_hour, ("carrier",), "no_key"),
        "no_order": view(departures, lambda d: d.select("origin", "delay", "_origin"), ("origin",), "no_order"),
        "no_column": view(departures, lambda d: d.where("nix > 1"), ("tailnum",), "no_column"),
        "lost": Query("lost", (departures,), grouped, Alert(fresh("a"))),
        "python": Query("python", (departures,), shout, Alert(fresh("b")), True, timedelta(seconds=5)),
        "sorted": Query("sorted", (departures,), lambda d: d.orderBy("delay"), Stream(fresh("c"))),
    }
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1)])
    with runner.running(app, [*wrong.values(), view(departures)]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 1, "the right one works", 60)
        for name in wrong:
            until(lambda n=name: facts(n).get("state") == "failed", f"{name} failed", 60)
        said = {name: facts(name)["error"] for name in wrong}
    assert "the key names 'carrier'" in said["no_key"]
    assert "must contain the topic's key (tailnum)" in said["no_order"]
    assert "`nix` cannot be resolved" in said["no_column"]
    assert "lacks the column '_origin'" in said["lost"] and "an aggregate" in said["lost"]
    assert "real-time mode cannot run a Python UDF" in said["python"]
    assert "Sorting is not supported" in said["sorted"]


def test_a_query_that_fails_is_started_again(runner, kafka, views, departures, until, monkeypatch):
    """The store of views goes away for a while: the view goes on afterwards, without loss and without doubles."""
    from millstream.settings import MillstreamError
    from millstream.spark.outputs import view as module

    app = fresh("app").replace("-", "_")
    write, failing = module.ViewTable.write, [2]

    def fail(self, table, number, **more):
        if failing[0]:
            failing[0] -= 1
            raise MillstreamError("the store is away")
        write(self, table, number, **more)

    monkeypatch.setattr(module.ViewTable, "write", fail)
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1)])
    with runner.running(app, [view(departures)]) as facts:
        until(lambda: facts("by_hour").get("state") == "restarting", "it failed", 60)
        assert facts("by_hour")["error"] == "the store is away"
        until(
            lambda: facts("by_hour").get("input_rows") == 1 and facts("by_hour")["state"] == "running", "it goes on", 60
        )
        assert facts("by_hour")["error"] is None
    assert rows(views, app, "by_hour") == [("JFK", at(0), at(1), 1)]
