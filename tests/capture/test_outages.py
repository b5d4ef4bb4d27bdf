"""The source goes away while its tables are copied or its log is followed: that passes, with and without TLS."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from millstream.capture import failpoints
from millstream.postgresql.server import Server
from millstream.settings import Kafka
from tests import servers
from tests.capture.conftest import Source, database
from tests.tls import TlsProxy

pytestmark = [pytest.mark.system, pytest.mark.fault]


@pytest.fixture(params=["plain", "tls"])
def source(fragile: Server, kafka: Kafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A database on the server that may crash; the capture's connections may be encrypted."""
    with database(fragile, kafka, tmp_path, request.node.name) as made:
        made.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, pad text DEFAULT repeat('x', 500))")
        made.sql.execute("INSERT INTO t (id, n) SELECT i, 0 FROM generate_series(1, 30000) i")
        if request.param == "plain":
            yield made
            return
        proxy = TlsProxy(tmp_path, fragile.port)
        plain, made.conninfo = made.conninfo, make_conninfo(made.conninfo, port=proxy.port, sslmode="require")
        yield made
        made.conninfo = plain
        proxy.close()


def ends_as_passing(capture: servers.CaptureProcess) -> None:
    """Wait until the capture has ended, with an error that waiting may mend."""
    assert capture.process.wait(40) == 1
    assert "Unreachable: " in capture.log().splitlines()[-1], capture.log()[-2000:]


def folds(source: Source) -> None:
    """Capture until the topic equals the table."""
    with source.capture("t") as capture:
        capture.wait_ready()
        source.settled()
        assert source.latest("t") == source.rows("t") and len(source.latest("t")) == 30000


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_the_source_restarts_during_the_snapshot(source: Source, fragile: Server, how: signal.Signals) -> None:
    held = {failpoints.CHUNK_STORED: 0.5}
    with source.capture("t", held=held) as capture:
        servers.wait_for(lambda: source.messages("t") if source.slot_exists() else False, "the first rows")
        source.sql.close()
        assert fragile.pid is not None
        os.kill(fragile.pid, how)
        assert fragile.wait(20)
        try:
            ends_as_passing(capture)
        finally:
            fragile.stop()
            fragile.start()
            source.connect()
    folds(source)


def test_an_administrator_ends_the_connections(source: Source) -> None:
    with source.capture("t") as capture:
        capture.wait_ready()
        query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
        source.sql.execute(query, [source.slot()])
        ends_as_passing(capture)
        assert "following the log" in capture.log()
    with source.capture("t", held={failpoints.CHUNK_STORED: 0.5}, state="other") as capture:
        query = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'millstream capture %'"
        )
        servers.wait_for(lambda: source.sql.execute(query).fetchall(), "it is connected")
        ends_as_passing(capture)
    folds(source)


@pytest.mark.parametrize(
    "changes", [{"password": "wrong", "passfile": "/dev/null"}, {"dbname": "absent"}, {"user": "absent"}]
)
def test_what_the_user_must_mend_stays_final(source: Source, changes: dict[str, str]) -> None:
    source.conninfo, good = make_conninfo(source.conninfo, **changes), source.conninfo
    with source.capture("t") as capture:
        assert capture.process.wait(30) == 1
        assert "MillstreamError: PostgreSQL at" in capture.log() and "Unreachable" not in capture.log()
    source.conninfo = good
