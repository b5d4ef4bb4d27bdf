"""The examples: their own tests pass, and under load, killed as a whole twice, their results are what pandas says."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from millstream.client.sender import SendError
from millstream.client.tail import tail
from millstream.postgresql.server import Server
from millstream.run import runfile
from millstream.settings import Kafka, MillstreamError, Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("trips", "support")
EVENTS = 20_000
CITIES, TEAMS = ("Bodø", "Oslo", "Bergen"), ("red", "blue")


@contextmanager
def modules(name):
    """The modules of an example by their names, and none of them left behind."""
    folder = EXAMPLES / name
    sys.path.insert(0, str(folder))
    files = {path.stem: path for path in folder.glob("*.py")}
    try:
        yield lambda stem: importlib.import_module(stem)
    finally:
        sys.path.remove(str(folder))
        for stem in files:
            sys.modules.pop(stem, None)


@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("spark")
def test_its_own_tests_pass(name):
    with modules(name) as module:
        tests = module(f"test_{name}")
        found = [value for key, value in vars(tests).items() if key.startswith("test_")]
        assert len(found) == 3
        for test in found:
            test()


# Under load


class Application:
    """`millstream run` of an example, which a test may kill with all its processes."""

    def __init__(self, name, folder, source):
        self.name, self.folder, self.data = name, folder, folder / ".millstream"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_") or k == "MILLSTREAM_CACHE"}
        database = {"trips": "CITY", "support": "DESK"}[name]
        self.environment = kept | {f"MILLSTREAM_SOURCE_{database}": source}
        self.process = None

    def start(self):
        log = (self.folder / "run.log").open("a")
        command = [sys.executable, "-m", "millstream", "run", str(EXAMPLES / self.name / f"{self.name}.py")]
        self.process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        log.close()

    def kill(self):
        """Kill everything at once, as a power cut of the machine would end it."""
        every = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(30)

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    @property
    def kafka(self):
        return Kafka(runfile.current(self.data).addresses["kafka"])

    def settings(self):
        running = runfile.current(self.data)
        return Settings(data=self.data, postgres=running.addresses.get("postgres", "") if running else "")


def sent(topic, events, settings, acknowledged):
    """Send events, and those again that were not written, until all are acknowledged."""
    left = list(events)
    deadline = time.monotonic() + 240
    while left:
        assert time.monotonic() < deadline, f"{len(left)} events of {topic.name} could not be sent"
        try:
            topic.send_many(left, settings=settings)
            acknowledged += left
            return
        except SendError as error:
            acknowledged += [e for n, e in enumerate(left[: error.taken]) if n not in error.failed]
            left = [e for n, e in enumerate(left) if n in error.failed or n >= error.taken]
        except MillstreamError:
            time.sleep(0.2)  # nothing runs, or nothing answers


def batches(events, size=250):
    return [events[start : start + size] for start in range(0, len(events), size)]


def load(module, name):
    """The topics and what is sent to each, in turns."""
    feed, app = module("feed"), module(name)
    if name == "trips":
        return [(app.trips, batch) for batch in batches(list(feed.made(EVENTS)))]
    tickets, messages = map(list, zip(*feed.made(EVENTS // 4), strict=True))
    pairs = zip(batches(tickets), batches(messages), strict=True)
    return [turn for t, m in pairs for turn in ((app.tickets, t), (app.messages, m))]


def everything(kafka, topic, kind):
    """All events that stand in a topic: a resent one may stand twice."""
    return [kind(m.value) for m in tail(kafka, topic, "earliest", follow=False)]


def trips_of(app, kafka):
    import pandas as pd

    trips = pd.DataFrame(everything(kafka, "trips", json.loads))
    trips["city"] = [CITIES[n % 3] for n in trips["station"]]
    trips["hour"] = pd.to_datetime(trips["started_at"], format="ISO8601").dt.floor("h")
    expected = trips.groupby(["city", "hour"])["minutes"].agg(["count", "sum", "max"]).itertuples()
    found = {
        (row["city"], row["hour_start"]): (row["rides"], row["minutes"], row["longest"])
        for row in app.read("rides_by_hour", settings=app.here)
    }
    long = sorted(trips.loc[trips["minutes"] > 180, "id"])
    alerts = sorted(row["id"] for row in everything(kafka, "long_trips", json.loads))
    return (found, alerts), ({row[0]: tuple(row[1:]) for row in expected}, long)


def support_of(app, kafka):
    import pandas as pd

    tickets, messages = (pd.DataFrame(everything(kafka, name, json.loads)) for name in ("tickets", "messages"))
    opened = pd.to_datetime(tickets["opened_at"], format="ISO8601")
    sent_at = pd.to_datetime(messages["sent_at"], format="ISO8601")
    messages = messages.assign(
        sent_at=sent_at, team=[TEAMS[n % 2] for n in messages["agent"]], hour=sent_at.dt.floor("h")
    )
    joined = tickets.assign(opened_at=opened).merge(messages, left_on="ticket", right_on="about")
    joined["waited"] = (joined["sent_at"] - joined["opened_at"]) / pd.Timedelta(minutes=1)
    joined = joined[(joined["waited"] >= 0) & (joined["waited"] <= 120)]
    teams = {key: int(count) for key, count in messages.groupby(["team", "hour"]).size().items()}
    waits = {
        row.Index: (row.count_, round(row.min_, 3))
        for row in joined.groupby("customer")["waited"].agg(count_="count", min_="min").itertuples()
    }
    urgent = sorted(tickets.loc[tickets["urgent"], "ticket"])
    found = (
        {(row["team"], row["hour_start"]): row["messages"] for row in app.read("team_hours", settings=app.here)},
        {row["customer"]: (row["answers"], round(row["shortest"], 3)) for row in app.read("waits", settings=app.here)},
        sorted(row["ticket"] for row in everything(kafka, "urgent_tickets", json.loads)),
    )
    return found, (teams, waits, urgent)


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_killed_twice_under_load_the_results_are_pandas(name, tmp_path):
    with Server(tmp_path / "server") as server, modules(name) as module:
        source = server.database("source")
        with psycopg.connect(source) as connection:
            connection.execute(
                "CREATE TABLE stations (id int PRIMARY KEY, city text NOT NULL);"
                "INSERT INTO stations SELECT n, (ARRAY['Bodø', 'Oslo', 'Bergen'])[n % 3 + 1] FROM generate_series(1, 20) n;"
                "CREATE TABLE agents (id int PRIMARY KEY, team text NOT NULL);"
                "INSERT INTO agents SELECT n, (ARRAY['red', 'blue'])[n % 2 + 1] FROM generate_series(1, 12) n"
            )
        running = Application(name, tmp_path, source)
        turns, acknowledged, failures = load(module, name), [], []
        places = [threading.Event() for _ in range(2)]  # a third and two thirds are sent

        def feed():
            try:
                for number, (topic, batch) in enumerate(turns):
                    sent(topic, batch, Settings(data=running.data), acknowledged)
                    for part, place in enumerate(places):
                        if number >= len(turns) * (part + 1) // 3:
                            place.set()
                    time.sleep(0.1)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=feed, daemon=True)
        try:
            running.start()
            thread.start()
            for place in places:
                while not place.wait(0.2):
                    assert not failures and thread.is_alive(), failures
                wait_for(lambda: "spark" in (runfile.current(running.data) or EMPTY).processes, 180)
                time.sleep(10)  # Spark is in the middle of something, or has not begun
                running.kill()
                running.start()
            thread.join(300)
            assert not thread.is_alive() and not failures, failures
            app = module(name).app
            compare = {"trips": trips_of, "support": support_of}[name]

            def right():
                app.here = running.settings()
                try:
                    found, expected = compare(app, running.kafka)
                except (MillstreamError, KeyError, AttributeError):
                    return False  # still starting
                right.last = found, expected
                return found == expected

            right.last = None
            try:
                wait_for(right, 180)
            except AssertionError:
                assert right.last[0] == right.last[1]
                raise
            ids = {
                e["id" if name == "trips" else "ticket"]
                for e in everything(running.kafka, turns[0][0].name, json.loads)
            }
            assert {getattr(e, "id", getattr(e, "ticket", None)) for e in acknowledged} - {None} <= ids
        finally:
            running.end()


EMPTY = runfile.Running("", "", 0)


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.5)
