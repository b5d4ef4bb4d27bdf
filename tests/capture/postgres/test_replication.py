"""Timelines: where one was left, and a source that has changed to another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.capture.postgres.replication import left_at
from millstream.postgresql.server import Server
from millstream.settings import Kafka
from tests import servers
from tests.capture.conftest import Source, database

HISTORY = "1\t0/3000158\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01 # a comment\n"


def test_where_a_timeline_was_left() -> None:
    assert left_at(HISTORY, 1) == 0x3000158
    assert left_at(HISTORY, 2) == (1 << 32) + 0xA0
    assert left_at(HISTORY, 3) is None and left_at("", 1) is None


@pytest.fixture
def source(fragile: Server, kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A captured table on the server that may crash."""
    with database(fragile, kafka, tmp_path, request.node.name) as made:
        made.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        made.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
        with made.capture("t") as capture:
            capture.wait_ready()
            capture.stop()
        yield made


def captured_further(source: Source, by: int) -> None:
    """Have the state say that more was captured than the source has."""
    path = source.folder / "state" / f"{source.app}-ops.json"
    state = json.loads(path.read_bytes())
    state["confirmed"] += by
    path.write_text(json.dumps(state))


def folds(source: Source) -> str:
    """Capture until the topic equals the table; returns the log."""
    with source.capture("t") as capture:
        capture.wait_ready()
        source.settled()
        assert source.latest("t") == source.rows("t")
        return capture.log()


@pytest.mark.system
def test_a_source_that_was_restored_from_a_backup(source: Source) -> None:
    captured_further(source, 1 << 40)
    source.sql.execute("DELETE FROM t WHERE id = 3")
    assert "restored from a backup" in folds(source)


@pytest.mark.system
@pytest.mark.fault
@pytest.mark.parametrize("lost", [0, 1 << 20])
def test_a_promoted_standby(source: Source, fragile: Server, lost: int) -> None:
    source.sql.execute("DELETE FROM t WHERE id = 3")
    captured_further(source, lost)
    source.sql.close()
    fragile.stop()
    signal = fragile.folder / "data" / "standby.signal"
    signal.touch()
    owner = (fragile.folder / "data").stat()
    os.chown(signal, owner.st_uid, owner.st_gid)
    fragile.start()
    source.connect()
    source.sql.execute("SELECT pg_promote()")
    servers.wait_for(lambda: source.sql.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), "it is promoted")
    # Enough for the position to be inside its log, whatever happened to that of the one before.
    source.sql.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 3 << 20), true)")
    assert ("lacks the end of what was captured" in folds(source)) is bool(lost)
