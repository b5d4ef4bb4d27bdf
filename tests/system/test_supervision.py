"""The supervisor around the real log, database, capture and console (no Spark): start, kills, take-over, plan, the end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import psycopg
import pytest

from millstream.app import load
from millstream.client.tail import tail
from millstream.run import Step, Supervisor, runfile, tree
from millstream.run.compare import compare
from millstream.settings import Settings

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

APPLICATION = """
from datetime import datetime
import millstream as ms

app = ms.App("shop")

class Order(ms.Event):
    item: str
    at: datetime

orders = app.topic("orders", Order, key="item", event_time="at")
items = app.table("items", source=ms.postgres("ops", table="items"))
"""


@pytest.fixture
def application(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(APPLICATION)
    return path


def fill(context):
    with psycopg.connect(context.settings.source("ops")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS items (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO items VALUES (1, 'one') ON CONFLICT DO NOTHING")


def supervisor(application, data):
    steps = [Step("fill", call=fill, after={"postgres"}, before={"capture"})]
    return Supervisor(load(str(application)), Settings(data=data), file=str(application), extra=steps)


def eventually(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.05)
    return found


def captured(running):
    values = [json.loads(m.value)["after"] for m in tail(running.kafka, "items", "earliest", follow=False) if m.value]
    return {row["id"]: row["name"] for row in values if row}


def insert(running, number, name):
    with psycopg.connect(running.settings().source("ops")) as connection:
        connection.execute("INSERT INTO items VALUES (%s, %s)", [number, name])


def back(running, name, restarts=1):
    def ready():
        status = running.statuses()[name]
        return status.restarts >= restarts and status.state == "ready"

    eventually(ready)


def test_kills_of_single_parts_are_mended_at_the_same_addresses_and_the_rest_carries_on(application, tmp_path):
    with supervisor(application, tmp_path / "data") as running:
        assert running.wait_ready(60)
        assert httpx.get(running.console, follow_redirects=True).status_code == 200
        eventually(lambda: captured(running) == {1: "one"})
        kafka, conninfo = running.kafka, running.settings().source("ops")
        pids = dict(runfile.current(running.data).processes)

        os.kill(pids["broker"], signal.SIGKILL)
        back(running, "broker")
        insert(running, 2, "two")
        eventually(lambda: captured(running) == {1: "one", 2: "two"})
        assert running.kafka == kafka
        assert runfile.current(running.data).processes | {"broker": 0} == pids | {"broker": 0}

        os.kill(running.facts("postgres")["pid"], signal.SIGKILL)
        back(running, "postgres")
        assert running.settings().source("ops") == conninfo
        insert(running, 3, "three")
        eventually(lambda: 3 in captured(running))

        os.kill(running.pid("capture"), signal.SIGKILL)
        insert(running, 4, "four")
        back(running, "capture-ops")
        eventually(lambda: 4 in captured(running))

        os.kill(running.pid("postgres"), signal.SIGKILL)  # the process around the server; the server goes with it
        back(running, "postgres", 2)
        insert(running, 5, "five")
        eventually(lambda: 5 in captured(running))
        assert running.pid("serve") == pids["serve"]
        everything = tree.marked(running.run)
    assert not any(tree.alive(pid) for pid in everything)


def test_plan_compares_with_what_runs(application, tmp_path):
    settings = Settings(data=tmp_path / "data")
    with supervisor(application, settings.data) as running:
        assert running.wait_ready(60)
        compared = compare(running.graph, settings)
        assert compared.log.address == f"embedded, {running.kafka.bootstrap}"
        assert {c.state for c in compared.changes} == {"kept"}


@contextmanager
def command(application, data):
    """`millstream run … --json` once everything is ready, with the addresses that it printed."""
    words = ["run", str(application), "--data", str(data), "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", "from millstream.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stdout:
                if "console" in (facts := json.loads(line)):
                    yield process, facts
                    break
            else:
                raise AssertionError(process.stderr.read())
        finally:
            process.kill()


def test_a_killed_run_takes_all_along_and_the_next_one_takes_over(application, tmp_path):
    data = tmp_path / "data"
    application.write_text(APPLICATION[: APPLICATION.index("items =")])
    with command(application, data) as (process, first):
        pids = list(runfile.current(data).processes.values())
        assert len(pids) == 2
        process.kill()
    with command(application, data) as (process, second):
        assert second["kafka"] == first["kafka"]
        assert not any(tree.alive(pid) for pid in pids)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert runfile.current(data) is None


def test_a_killed_supervisor_takes_postgres_along(application, tmp_path):
    code = f"""
import time
from pathlib import Path
from millstream.app import load
from millstream.run import Step, Supervisor
from millstream.settings import Settings
import psycopg
def fill(context):
    with psycopg.connect(context.settings.source("ops")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS items (id int PRIMARY KEY, name text)")
step = Step("fill", call=fill, after={{"postgres"}}, before={{"capture"}})
file, data = {str(application)!r}, Path({str(tmp_path / "data")!r})
running = Supervisor(load(file), Settings(data=data), file=file, extra=[step])
with running:
    running.wait_ready(60)
    print(running.facts("postgres")["pid"], flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        server = int(process.stdout.readline())
        pids = [server, *runfile.current(tmp_path / "data").processes.values()]
        assert len(pids) == 5 and all(tree.alive(pid) for pid in pids)
        process.kill()
    eventually(lambda: not any(tree.alive(pid) for pid in pids), 20)
    with supervisor(application, tmp_path / "data") as running:
        assert running.wait_ready(60)
        insert(running, 9, "nine")
        eventually(lambda: captured(running).get(9) == "nine")


def test_a_port_that_the_user_gave_is_listened_on(application, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    application.write_text(APPLICATION[: APPLICATION.index("items =")])
    with Supervisor(
        load(str(application)), Settings(data=tmp_path / "data"), file=str(application), listen={"broker": address}
    ) as running:
        assert running.wait_ready(60)
        assert running.kafka.bootstrap == address
