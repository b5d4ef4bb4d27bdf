"""Kill -9 of one part of the flights demo while it works; at the end every result is what an undisturbed run gives.

MILLSTREAM_FAULT_SEEDS=10 runs ten different moments for each victim instead of one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.rows import dict_row

from millstream.client.tail import tail
from millstream.demo.replay import Options
from millstream.monitor.lag import group_lag
from millstream.monitor.status import read as read_status
from millstream.run import runfile
from millstream.settings import Kafka, MillstreamError

pytestmark = [pytest.mark.system, pytest.mark.fault, pytest.mark.timeout(400)]

VICTIMS = ("supervisor", "jvm", "spark", "broker", "postgres", "capture")
SEEDS = range(int(os.environ.get("MILLSTREAM_FAULT_SEEDS", "1")))
# How fast the input comes: a quarter of a minute of it, so that a kill hits the middle. On a busy machine one batch may take in
# so much that the moment is missed; the next attempt is slower.
SPEEDS = (7200, 2400, 800)
GROUP = "flights.delay_by_hour"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_in_the_middle(victim, seed, tmp_path):
    chance = random.Random(f"{victim} {seed}")
    share = chance.uniform(0.45, 0.75)
    for speed in SPEEDS:
        folder = tmp_path / str(speed)
        folder.mkdir()
        if survives(folder, victim, chance, share, Options(days=1, speed=speed)):
            return
    pytest.fail(f"no moment with a fifth to four fifths unprocessed was met at any of {SPEEDS}")


def survives(tmp_path: Path, victim: str, chance: random.Random, share: float, options: Options) -> bool:
    """Kill when no more than `share` is unprocessed, and check everything at the end; return False when it was too late."""
    data = tmp_path / "data"
    with demo(data, tmp_path / "first.out", options) as first:
        with writing(data, chance):
            left = wait_for_share(data, share, first, options)
            if not 0.2 <= left <= 0.8:
                return False
            kill(data, first, victim)
            if victim == "supervisor":
                first.wait(30)
            else:
                summary = wait_for_summary(tmp_path / "first.out", first)
        if victim != "supervisor":
            check_restarted(data, victim)
            check_capture(data)
    if victim == "supervisor":
        with demo(data, tmp_path / "second.out", options) as second:
            with writing(data, chance):
                summary = wait_for_summary(tmp_path / "second.out", second)
            check_capture(data)
    failed = [check for check in summary["checks"] if not check["ok"]]
    assert summary["ok"], failed
    return True


@contextmanager
def demo(data: Path, out: Path, options: Options) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo, its summary as JSON in `out`, and end it with everything it started."""
    command = [sys.executable, "-m", "millstream", "demo", "--data", str(data), "--json", "--keep"]
    command += ["--days", str(options.days), "--speed", str(options.speed)]
    with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


def wait_for(found: Callable[[], Any], process: subprocess.Popen[bytes], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(MillstreamError):
            if (value := found()) is not None:
                return value
        assert process.poll() is None, f"the demo ended with exit code {process.returncode} before there was {what}"
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.1)


def wait_for_share(data: Path, share: float, process: subprocess.Popen[bytes], options: Options) -> float:
    """Wait until no more than `share` of the departures is unprocessed, and return the share that is."""
    total = sum(slot.topic == "departures" for slot in options.replay().slots())

    def reached() -> float | None:
        running = runfile.current(data)
        if running is None or "kafka" not in running.addresses:
            return None
        lags = group_lag(Kafka(running.addresses["kafka"]), GROUP)
        left = 1 - sum(lag.committed for lag in lags) / total
        return left if left <= share else None

    return wait_for(reached, process, 150, f"progress to {share:.0%} unprocessed")


def kill(data: Path, process: subprocess.Popen[bytes], victim: str) -> None:
    pids = runfile.current(data).processes
    if victim == "supervisor":
        process.kill()
    elif victim == "postgres":
        os.kill(child(pids["postgres"], "postgres"), signal.SIGKILL)
    elif victim == "jvm":
        os.kill(child(pids["spark"], "java"), signal.SIGKILL)
    else:
        os.kill(pids["capture-ops" if victim == "capture" else victim], signal.SIGKILL)


def child(pid: int, name: str) -> int:
    return next(p.pid for p in psutil.Process(pid).children(recursive=True) if p.name() == name)


def wait_for_summary(out: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        with suppress(ValueError):
            return json.loads(out.read_bytes())
        return None

    return wait_for(found, process, 180, "summary")


@contextmanager
def writing(data: Path, chance: random.Random) -> Iterator[None]:
    """Change rows of `airports`, which no check of the demo looks at, all the time."""
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            with suppress(psycopg.Error, MillstreamError):
                running = runfile.current(data)
                if running is None or "postgres" not in running.addresses:
                    continue
                address = running.addresses["postgres"]
                with psycopg.connect(address, dbname="ops", autocommit=True, connect_timeout=2) as connection:
                    while not stop.wait(0.02):
                        change(connection, chance)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


def change(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    code = f"X{chance.randrange(40):02}"
    match chance.randrange(4):
        case 0:
            connection.execute("DELETE FROM airports WHERE faa = %s", [code])
        case 1:
            connection.execute("UPDATE airports SET alt = alt + 1 WHERE faa IN ('JFK', 'LGA', 'EWR', 'ORD', 'IAH')")
        case _:
            connection.execute(
                "INSERT INTO airports SELECT %s, name, lat, lon, alt, tz, dst, tzone FROM airports WHERE faa = 'JFK'"
                " ON CONFLICT (faa) DO UPDATE SET alt = airports.alt + 1",
                [code],
            )


def check_restarted(data: Path, victim: str) -> None:
    name = {"capture": "capture-ops", "jvm": "spark"}.get(victim, victim)
    running = runfile.current(data)
    facts = read_status(Kafka(running.addresses["kafka"]), "flights")[("process", name)]
    assert facts["restarts"] >= 1


def check_capture(data: Path) -> None:
    """The captured table, folded from its topic, equals the table in the database."""
    running = runfile.current(data)
    with psycopg.connect(running.addresses["postgres"], dbname="ops", row_factory=dict_row) as connection:
        rows = {row["faa"]: row for row in connection.execute("SELECT * FROM airports").fetchall()}
    deadline = time.monotonic() + 30
    while (copy := fold(Kafka(running.addresses["kafka"]))) != rows:
        assert time.monotonic() < deadline, f"{len(copy)} rows captured, {len(rows)} in the table"
        time.sleep(0.5)


def fold(kafka: Kafka) -> dict[str, dict[str, Any]]:
    state: dict[str, dict[str, Any]] = {}
    for message in tail(kafka, "airports", "earliest", follow=False):
        key = json.loads(message.key)["faa"]
        after = json.loads(message.value)["after"] if message.value else None
        if after is None:
            state.pop(key, None)
        else:
            state[key] = after
    return state
