"""The driver of an application's queries: it never waits, queries fail alone, and what heals is told."""

import json
import threading
import time
from datetime import timedelta

import pytest
from pyspark.sql import functions as F

from millstream.app.inputs import Topic
from millstream.app.load import load
from millstream.app.outputs import Alert, Stream
from millstream.app.query import Query
from millstream.client.admin import delete_topic, ensure_topics
from millstream.settings import Unreachable
from tests.brokers import fresh
from tests.spark.test_run import SOON, Departure, departures, read, send  # noqa: F401

pytestmark = pytest.mark.system


def stream(topic, function, name="q", *, to=None):
    return Query(name, (topic,), function, Stream(to or fresh("out")), every=SOON)


def application():
    return fresh("app").replace("-", "_")


def test_a_slow_start_and_a_slow_commit_hold_up_nobody(runner, kafka, departures, until, monkeypatch):  # noqa: F811
    blocked = threading.Event()

    def slow(frame):
        blocked.wait(60)
        return frame

    monkeypatch.setattr("millstream.spark.commits.commit", lambda *given: blocked.wait(60))
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1)])
    quick = stream(departures, lambda d: d.where("delay > 0"), "quick")
    try:
        with runner.running(application(), [stream(departures, slow, "slow"), quick], wait=False) as facts:
            until(lambda: facts("quick").get("input_rows") == 1, "the quick one works", 60)
            send(kafka, departures, [("N1", "JFK", 1.0, 0.2)])
            until(lambda: facts("quick").get("input_rows") == 2, "and goes on while its commit waits", 60)
            stopped = time.monotonic()
        # The queries' own end, and the last positions, are waited for with bounds of their own (FINISH_S, CLOSE_S).
        assert time.monotonic() - stopped < 12
    finally:
        blocked.set()


def test_a_restarted_query_without_new_events_is_running(runner, departures, until, monkeypatch):  # noqa: F811
    from millstream.spark import pipeline

    begin, failing = pipeline.start, [1]

    def start(context, query):
        if failing[0]:
            failing[0] -= 1
            raise Unreachable("the store is away")
        return begin(context, query)

    monkeypatch.setattr(pipeline, "start", start)
    with runner.running(application(), [stream(departures, lambda d: d.where("delay > 0"))]) as facts:
        until(lambda: facts("q").get("state") == "running", "it runs", 60)
        assert facts("q")["error"] is None


def test_a_function_that_fails_on_an_event_names_it(runner, kafka, departures, until, monkeypatch):  # noqa: F811
    monkeypatch.setattr("millstream.spark.driver.BACKOFF_S", (0.1,))

    def inverse(delay):
        return 1 / delay

    function = lambda d: d.withColumn("delay", F.udf(inverse, "double")("delay"))  # noqa: E731
    send(kafka, departures, [(f"N{n}", "JFK", float(n != 5), 0.1) for n in range(12)])
    bad = {m.offset: m.partition for m in read(kafka, departures.name) if json.loads(m.value)["delay"] == 0.0}
    [(offset, partition)] = bad.items()
    with runner.running(
        application(), [stream(departures, function), stream(departures, lambda d: d, "other")]
    ) as facts:
        until(lambda: "at offset" in (facts("q").get("error") or ""), "the event is found", 120)
        said = facts("q")
        assert said["state"] == "failed"
        assert "ZeroDivisionError: float division by zero (test_driver.py line" in said["error"]
        assert f"it fails on the event {departures.name} [{partition}] at offset {offset}" in said["error"]
        assert facts("other")["input_rows"] == 12


def test_a_function_of_the_applications_own_file_in_a_udf(spark, tmp_path):
    from millstream.spark.pickling import send_applications_by_value

    file = tmp_path / "clicks.py"
    file.write_text(
        "import millstream as ms\nfrom pyspark.sql import functions as F\n\napp = ms.App('clicks')\n\n\n"
        "class Click(ms.Event):\n    user: str\n\n\nclicks = app.topic('clicks', Click)\n\n\n"
        "def shout(text):\n    return text.upper()\n\n\n"
        "@app.stream(clicks, to='loud')\ndef loud(clicks):\n"
        "    return clicks.withColumn('user', F.udf(lambda text: shout(text))('user'))\n"
    )
    query = load(str(file)).queries["loud"]
    send_applications_by_value()
    rows = query.function(spark.createDataFrame([("ann",)], "user string")).collect()
    assert [r.user for r in rows] == ["ANN"]


def test_topics_that_are_removed_or_made_again(runner, kafka, departures, until):  # noqa: F811
    other = Topic(fresh("other"), Departure, key="tailnum")
    ensure_topics(kafka, [(other.name, 2, {})])
    app, to, good = application(), fresh("out"), [("N1", "JFK", 1.0, 0.1)]

    def letters():
        return sorted(json.loads(m.value)["topic"] for m in read(kafka, f"{app}.dead_letters"))

    def results():
        return len(read(kafka, to))

    one = stream(departures, lambda d: d.where("delay > 0"), to=to)
    send(kafka, departures, [*good, b"{"])
    send(kafka, other, [b"{"])
    with runner.running(app, [one, stream(other, lambda d: d.where("delay > 0"), "r")]):
        until(lambda: letters() == sorted([departures.name, other.name]) and results() == 1, "all is read", 60)
    with runner.running(app, [one]) as facts:
        send(kafka, departures, [*good, b"{"])
        until(lambda: results() == 2 and len(letters()) == 3, "the application lost a topic", 60)
        assert facts("dead_letters")["error"] is None
    delete_topic(kafka, departures.name)
    ensure_topics(kafka, [(departures.name, 2, {})])
    send(kafka, departures, [("N2", "JFK", 1.0, 0.1), ("N1", "JFK", 1.0, 0.1), b"["])
    with runner.running(app, [one]):
        until(lambda: results() == 4, "a topic made again is read from its start", 60)
        until(lambda: letters().count(departures.name) >= 2, "its dead letters too", 60)


def test_a_time_in_the_far_future_moves_nothing(runner, kafka, departures, until):  # noqa: F811
    app, to = application(), fresh("out")
    far = 24 * 365 * 80
    send(kafka, departures, [("N1", "JFK", 1.0, 0.0), ("N1", "JFK", 1.0, far), ("N1", "JFK", 1.0, 0.1)])
    with runner.running(app, [stream(departures, lambda d: d.where("delay > 0"), to=to)]) as facts:
        until(lambda: len(read(kafka, to)) == 2, "two are read", 60)
        until(lambda: facts("dead_letters").get("dead") == 1, "one is a dead letter", 60)
        assert (facts("q").get("watermark") or "") < "2014"
    [letter] = read(kafka, f"{app}.dead_letters")
    assert "field 'departed_at': the time 2092" in json.loads(letter.value)["reason"]
    assert "more than 0:05:00 ahead of the log's" in json.loads(letter.value)["reason"]


def test_an_alert_whose_rows_cannot_be_known_again_is_refused(runner, departures, until):  # noqa: F811
    random = lambda d: d.withColumn("x", F.explode(F.array(F.rand(), F.rand())))  # noqa: E731
    query = Query("q", (departures,), random, Alert(fresh("out")), every=timedelta(seconds=1))
    with runner.running(application(), [query]) as facts:
        until(lambda: facts("q").get("state") == "failed", "it is refused", 60)
        assert "gives another value when a row is computed again" in facts("q")["error"]
