"""The demo as a user runs it: interrupted in the middle, taken up again, right in the end; and its parts."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from demo.parts import Broker, eventually

from millstream.app.names import STATUS
from millstream.app.process import Process
from millstream.client.admin import ensure_topic, topic_names
from millstream.client.groups import commit
from millstream.client.producer import producer
from millstream.demo.demo import clear, command, parts
from millstream.demo.options import Options
from millstream.demo.plane import wait_for_query
from millstream.monitor import catchup
from millstream.monitor.lag import group_lag
from millstream.monitor.status import Reporter
from millstream.run.part import Step
from millstream.settings import MillstreamError, Settings


def test_the_replayer_gets_the_options():
    assert command(Options(3, None, 4, 5))[1:] == (
        "-m", "millstream.demo.replay", "--days", "3", "--speed", "max", "--bad", "4", "--seed", "5",
    )  # fmt: skip
    assert "3600.0" in command(Options(speed=3600.0))


@pytest.mark.parametrize(
    ("settings", "after"), [(Settings(), {"postgres"}), (Settings(sources={"ops": "dbname=ops"}), set())]
)
def test_tables_come_before_capture_and_the_replay_last(settings, after):
    tables, replay = parts(Options(), settings)
    assert isinstance(tables, Step)
    assert (tables.after, tables.before) == (after, {"capture-ops"})
    assert isinstance(replay, Process)
    assert replay.ends
    assert {"spark", "deliver", "capture-ops"} <= replay.needs


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path / "log")
    yield broker
    broker.stop()


def fill(broker, topic, count=3):
    ensure_topic(broker.kafka, topic, 1)
    client = producer(broker.kafka)
    for n in range(count):
        client.produce(topic, str(n).encode(), partition=0)
    client.flush()


@pytest.mark.system
def test_a_log_of_ones_own_must_be_empty_or_is_emptied_when_asked(broker):
    from millstream.demo.flights import app

    said = []
    clear(app, broker.kafka, reset=False, say=said.append)
    fill(broker, "departures")
    fill(broker, "precious")
    commit(broker.kafka, "flights.enriched", {("departures", 0): 3})
    commit(broker.kafka, "others", {("precious", 0): 3})
    with pytest.raises(MillstreamError, match=r"holds topics of an earlier demo, .*: departures\. .* --reset"):
        clear(app, broker.kafka, reset=False, say=said.append)
    clear(app, broker.kafka, reset=True, say=said.append)
    assert said == ["deleting the topic departures (3 messages)"]
    assert "departures" not in topic_names(broker.kafka)
    assert "precious" in topic_names(broker.kafka)
    assert group_lag(broker.kafka, "flights.enriched") == []
    assert len(group_lag(broker.kafka, "others")) == 1


@pytest.mark.system
def test_the_summary_waits_for_every_query_and_delivery(broker):
    for topic in ("departures", "_flights.very_late"):
        fill(broker, topic)
    stop, done, told = threading.Event(), [], []
    wanted = {"flights.enriched": {"departures"}, "flights.dead_letters": {"departures"}}

    def wait():
        done.append(
            catchup.wait(broker.kafka, "flights", wanted, ["_flights.very_late", "_none"], stop, progress=told.append)
        )

    thread = threading.Thread(target=wait)
    thread.start()
    commit(broker.kafka, "flights.enriched", {("departures", 0): 3})
    commit(broker.kafka, "flights.dead_letters", {("departures", 0): 3})
    commit(broker.kafka, "flights.very_late.deliver", {("_flights.very_late", 0): 2})
    eventually(lambda: told, "a word on how far it is")
    assert "flights.very_late.deliver has 1 events to go" in told[-1] or "the delivery of" in told[-1]
    assert not done
    commit(broker.kafka, "flights.very_late.deliver", {("_flights.very_late", 0): 3})
    thread.join(30)
    assert done == [True]


@pytest.mark.system
def test_a_query_that_failed_or_stands_still_is_named(broker):
    fill(broker, "departures")
    ensure_topic(broker.kafka, STATUS)
    wanted = {"flights.enriched": {"departures"}}
    with pytest.raises(MillstreamError, match=r"flights\.enriched has 3 events to go, and nothing moved"):
        catchup.wait(broker.kafka, "flights", wanted, [], threading.Event(), patience=0.5)
    with Reporter(broker.kafka, "flights") as reporter:
        reporter.report("query", "enriched", state="failed", error="no such column")
    with pytest.raises(MillstreamError, match="the query enriched failed: no such column"):
        catchup.wait(broker.kafka, "flights", wanted, [], threading.Event())
    stop = threading.Event()
    stop.set()
    assert not catchup.wait(broker.kafka, "flights", wanted, [], stop)


@pytest.mark.system
def test_the_plane_changes_when_the_query_has_seen_what_came_before(broker):
    fill(broker, "departures")
    ensure_topic(broker.kafka, STATUS)
    stop = threading.Event()
    assert not wait_for_query(broker.kafka, "flights", "enriched", "departures", stop)  # no such query runs
    with Reporter(broker.kafka, "flights") as reporter:
        reporter.report("query", "enriched", state="running")
    assert not wait_for_query(broker.kafka, "flights", "enriched", "departures", stop, timeout=0.3)
    commit(broker.kafka, "flights.enriched", {("departures", 0): 3})
    assert wait_for_query(broker.kafka, "flights", "enriched", "departures", stop)


def start(tmp_path, *options):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "millstream",
            "demo",
            "--days",
            "1",
            "--data",
            str(tmp_path / "data"),
            "--json",
            *options,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("ab"),
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.system
@pytest.mark.timeout(600)
def test_an_interrupted_demo_goes_on_and_is_right_in_the_end(tmp_path):
    first = start(tmp_path, "--speed", "1200")  # a day in more than a minute
    record, replayed = tmp_path / "data" / "demo.json", tmp_path / "data" / "logs" / "replay.log"
    eventually(lambda: replayed.exists() and "NOTE ready" in replayed.read_text(), "the replay", within=300)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert not json.loads(record.read_bytes())["finished"]

    second = start(tmp_path, "--speed", "max")
    output, _ = second.communicate(timeout=400)
    assert second.returncode == 0, (tmp_path / "stderr").read_text()[-3000:]
    summary = json.loads(output.splitlines()[-1])
    assert summary["ok"], summary
    assert all(check["ok"] for check in summary["checks"])
    assert json.loads(record.read_bytes())["finished"]
