"""The embedded server: started, found again, ended with its parent, and back after a kill -9."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from millstream.postgresql import server as module
from millstream.postgresql.account import account_for, processes_in
from millstream.postgresql.server import Server, run
from millstream.settings import MillstreamError
from tests.brokers import wait_until

pytestmark = pytest.mark.system

RUN = """
import json, sys, threading
from pathlib import Path
from millstream.postgresql.server import run
run(Path(sys.argv[1]), 0, ready=lambda facts: print(json.dumps(facts), flush=True), stop=threading.Event())
"""


def one(conninfo: str, query: str) -> object:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(query).fetchone()  # type: ignore[arg-type]
        return row and row[0]


def lives(pid: object) -> bool:
    """Whether a process runs. One that ended and that nobody has asked about yet does not."""
    try:
        return psutil.Process(int(str(pid))).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(folder: Path) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_starts_with_a_password_and_logical_log_on_loopback(server: Server) -> None:
    conninfo = server.database("some")
    assert one(conninfo, "SELECT current_database()") == "some"
    assert one(conninfo, "SHOW wal_level") == "logical"
    assert one(conninfo, "SELECT split_part(version(), '.', 1)") == "PostgreSQL 18"
    assert "password=" not in conninfo
    without = conninfo.replace(f"passfile={server.folder / 'passfile'}", "passfile=/dev/null")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(without)
    assert server.pid is not None
    listening = [c.laddr for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == [("127.0.0.1", server.port)]


def test_nobody_else_can_read_it(server: Server) -> None:
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.folder / "passfile").stat().st_mode) == 0o600
    assert stat.S_IMODE((server.folder / "data").stat().st_mode) == 0o700
    assert server.pid is not None
    for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children()]:
        assert process.uids().effective != 0
        password = (server.folder / "passfile").read_text().strip().rsplit(":", 1)[1]
        assert password not in " ".join(process.cmdline())
        assert password not in str(process.environ())


@pytest.mark.skipif(os.geteuid() != 0, reason="as root only")
def test_as_root_it_has_a_user_of_its_own_and_needs_no_other_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = {p: p.stat().st_mode for p in [closed, *closed.parents]}
    with Server(closed / "data" / "postgres") as server:
        owner = (server.folder / "data").stat().st_uid
        assert owner != 0 and (server.folder / "config").stat().st_uid == 0
        assert one(server.conninfo("postgres"), "SELECT 1") == 1
        assert one(server.conninfo("postgres"), "SELECT pg_reload_conf()") is True
    assert {p: p.stat().st_mode for p in [closed, *closed.parents]} == before


def test_data_and_port_stay(tmp_path: Path) -> None:
    with Server(tmp_path / "pg") as server:
        first = server.conninfo("postgres")
        with psycopg.connect(server.database("kept")) as connection:
            connection.execute("CREATE TABLE t AS SELECT 42 AS n")
    with Server(tmp_path / "pg") as server:
        assert server.conninfo("postgres") == first
        assert one(server.conninfo("kept"), "SELECT n FROM t") == 42


def test_an_interrupted_initdb_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "pg" / "data.part" / "base").mkdir(parents=True)
    (tmp_path / "pg" / "data.part" / "PG_VERSION").write_text("18\n")
    with Server(tmp_path / "pg") as server:
        assert one(server.conninfo("postgres"), "SELECT 1") == 1


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MillstreamError, match=f"port {port} for PostgreSQL is taken"):
            Server(tmp_path / "pg", port).start()


def test_a_folder_has_one_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWNER_S", 0.2)
    with pytest.raises(MillstreamError, match="another process runs the PostgreSQL"):
        Server(server.folder).start()
    assert one(server.conninfo("postgres"), "SELECT 1") == 1


def test_data_of_another_version_are_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "pg"):
        pass
    (tmp_path / "pg" / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(MillstreamError, match="made by PostgreSQL 17, this is 18"):
        Server(tmp_path / "pg").start()


def test_run_says_when_postgres_dies(tmp_path: Path) -> None:
    facts: dict[str, object] = {}

    def ready(more: dict[str, object]) -> None:
        facts.update(more)
        os.kill(int(str(more["pid"])), signal.SIGKILL)

    with pytest.raises(MillstreamError, match="was ended by SIGKILL"):
        run(tmp_path / "pg", 0, ready=ready, stop=threading.Event())
    with Server(tmp_path / "pg") as server:
        assert one(server.conninfo("postgres"), "SELECT 1") == 1


def test_run_returns_when_asked(tmp_path: Path) -> None:
    stop = threading.Event()
    facts: dict[str, object] = {}

    def ready(more: dict[str, object]) -> None:
        facts.update(more)
        stop.set()

    run(tmp_path / "pg", 0, ready=ready, stop=stop)
    assert "dbname=millstream" in str(facts["postgres"])
    assert not lives(facts["pid"])


def test_ends_with_its_parent_and_starts_again_at_once(tmp_path: Path) -> None:
    process, facts = start(tmp_path / "pg")
    with psycopg.connect(str(facts["postgres"])) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS n")
    process.kill()
    process.wait()
    again, more = start(tmp_path / "pg")
    try:
        assert more["postgres"] == facts["postgres"]
        assert not lives(facts["pid"])
        assert one(str(more["postgres"]), "SELECT n FROM t") == 1
    finally:
        again.kill()
        again.wait()
    wait_until(lambda: not lives(more["pid"]), "PostgreSQL ends with its parent")


def test_a_backend_that_outlives_its_killed_server_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEFTOVERS_S", 0.5)
    process, facts = start(tmp_path / "pg")
    conninfo = str(facts["postgres"])
    problem: list[BaseException] = []

    def compute() -> None:
        try:  # a backend that computes does not look whether its server is alive
            one(conninfo, "SELECT count(*) AS endless FROM generate_series(1, 1e12)")
        except psycopg.Error as error:
            problem.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    wait_until(
        lambda: (
            one(conninfo, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%endless%' AND state = 'active'")
            == 2
        ),
        "the query runs",
    )
    os.kill(int(str(facts["pid"])), signal.SIGKILL)
    process.wait(10)
    with Server(tmp_path / "pg") as server:
        assert one(server.conninfo("postgres"), "SELECT 1") == 1
        thread.join(10)
        assert not thread.is_alive()


def test_shutdown_leaves_no_process(tmp_path: Path) -> None:
    server = Server(tmp_path / "pg")
    server.start()
    connection = psycopg.connect(server.conninfo("postgres"))
    connection.execute("CREATE TABLE t (n int)")  # a transaction that stays open
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 10
    connection.close()
    data = server.folder / "data"
    assert not (data / "postmaster.pid").exists()
    assert processes_in(data.stat(), account_for(data)) == []
