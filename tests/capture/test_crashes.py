"""Kills in pairs, with a crash of the source between them: the topics fold to the tables."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.capture import failpoints
from millstream.postgresql.server import Server
from millstream.settings import Kafka
from tests.capture.conftest import Source, crash, database

pytestmark = [pytest.mark.system, pytest.mark.fault]

ROWS, UPDATES = 50, 10
# The copying of tables is passed by the second capture only when it has lost its state.
FRESH = itertools.count(100_000, 10_000)
FIRST_RUN = {
    failpoints.SLOT_CREATED,
    failpoints.CHUNK_READ,
    failpoints.CHUNK_SENT,
    failpoints.CHUNK_STORED,
    failpoints.CHUNK_RECORDED,
    failpoints.SWEEPING,
    failpoints.COPIED,
}
# Later passes too, so that the second kill falls into the middle of what is read again.
SECOND = [*failpoints.ALL, f"{failpoints.CHANGE_SENT}:{ROWS * UPDATES // 2}", f"{failpoints.COMMIT_SENT}:{UPDATES}"]
# How many second points each first one is paired with; scripts/proof takes more. All of them take the better part of an hour.
PAIRS = min(int(os.environ.get("MILLSTREAM_TEST_PAIRS", "1")), len(SECOND))


@pytest.fixture
def source(fragile: Server, kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A database on the server that may crash."""
    with database(fragile, kafka, tmp_path, request.node.name) as made:
        made.sql.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        made.sql.execute("CREATE TABLE u (id int PRIMARY KEY, v int)")
        # Three chunks: the first one holds 500 rows (snapshot.FIRST_ROWS), the second four times as many.
        made.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2600) i")
        made.sql.execute("INSERT INTO u SELECT i, 0 FROM generate_series(1, 10) i")
        yield made


def restart(source: Source, server: Server) -> None:
    """Crash the source and connect again."""
    source.sql.close()
    crash(server)
    source.connect()


def write(source: Source, turn: int) -> None:
    """Change every one of the first rows many times, and something of every other kind."""
    for i in range(UPDATES):
        source.sql.execute("UPDATE t SET v = %s WHERE id <= %s", [turn * 1000 + i, ROWS])
    source.sql.execute("UPDATE t SET id = id + %s WHERE id = 2000 + %s", [next(FRESH), turn % 100])
    source.sql.execute("DELETE FROM t WHERE id = %s", [1500 + turn])
    source.sql.execute("TRUNCATE u")
    source.sql.execute("INSERT INTO u SELECT i, %s FROM generate_series(1, 5) i", [turn])
    source.sql.execute("UPDATE t SET v = %s WHERE id <= %s", [turn * 1000 + UPDATES, ROWS])


def fall(source: Source, failpoint: str, **more: object) -> None:
    """Run a capture until it kills itself at the failpoint."""
    with source.capture("t", "u", failpoint=failpoint, **more) as capture:  # type: ignore[arg-type]
        for turn in itertools.count(100):
            with suppress(subprocess.TimeoutExpired):
                capture.process.wait(1)
                break
            assert turn < 160, f"no crash at {failpoint}"
            write(source, turn)  # whatever the first capture had read already
        assert capture.process.returncode == -9, capture.log()


def folds(source: Source) -> None:
    """Run a capture until it has caught up, and compare."""
    with source.capture("t", "u") as capture:
        capture.wait_ready()
        source.settled()
        assert len(source.rows("t")) > 2000
        for name in ("t", "u"):
            assert source.latest(name) == source.rows(name)
        assert capture.stop() == 0


def seconds(first: str) -> list[str]:
    """Return the second points for a first one: others for each, and together all of them."""
    place = list(failpoints.ALL).index(first)
    return [SECOND[(place + number * 7) % len(SECOND)] for number in range(PAIRS)]


@pytest.mark.parametrize("first", failpoints.ALL)
def test_two_kills_and_a_crash_of_the_source_between_them(source: Source, fragile: Server, first: str) -> None:
    state = source.folder / "state" / f"{source.app}-ops.json"
    folds(source)
    for turn, second in enumerate(seconds(first)):
        if first in FIRST_RUN:
            state.unlink()
            source.sql.execute("DELETE FROM t WHERE id > %s", [2599 - turn])
        write(source, 2 * turn + 1)
        fall(source, first)
        restart(source, fragile)
        write(source, 2 * turn + 2)
        if second.partition(":")[0] in FIRST_RUN:
            state.unlink(missing_ok=True)
            source.sql.execute("DELETE FROM t WHERE id > %s", [2589 - turn])
        # Slow, so that the source hears of us in the middle of what comes again.
        fall(source, second, held={failpoints.CHANGE_SENT: 0.0005, failpoints.FLUSHING: 0.1})
        folds(source)


def test_what_a_crash_of_the_source_repeats_is_not_confirmed_before_it_is_read(source: Source, fragile: Server) -> None:
    with source.capture("t", "u") as capture:
        capture.wait_ready()
        for turn in range(1, 8):
            write(source, turn)
        source.settled()
        capture.kill()
    restart(source, fragile)  # the slot is where it was when it was made
    there = len(source.messages("t"))
    # The source must not hear of the state's position before what comes again was read up to there; killed in the middle of it.
    slow = {failpoints.CHANGE_SENT: 0.001}
    with source.capture("t", "u", failpoint=f"{failpoints.CHANGE_SENT}:{ROWS * UPDATES}", held=slow) as capture:
        assert capture.process.stdout is not None
        capture.process.stdout.readline()  # it is ready, or dead
        capture.kill()
    folds(source)
    assert len(source.messages("t")) == there
