"""Connections and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millstream.postgresql.connect import address, connect, ensure_database, explain, with_database
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError, Unreachable


def test_a_connection_string_that_is_none() -> None:
    with pytest.raises(MillstreamError, match="expected a PostgreSQL connection string"):
        connect("nonsense")


def test_nothing_listens() -> None:
    with pytest.raises(MillstreamError, match=r"127\.0\.0\.1:1/x: .*is the server running"):
        connect("postgresql://me:secret@127.0.0.1:1/x")


def test_addresses_have_no_secret() -> None:
    assert address("postgresql://me:secret@db.example/ops") == "db.example:5432/ops"
    assert with_database("host=a dbname=b", "c d") == "dbname='c d' host=a"


@pytest.mark.system
def test_a_wrong_password(server: Server) -> None:
    with pytest.raises(MillstreamError, match="Check user and password") as caught:
        connect(make_conninfo(server.conninfo("postgres"), passfile="/dev/null", password="hunter2"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.system
def test_a_database_that_is_not_there(server: Server) -> None:
    with pytest.raises(MillstreamError, match="Create it"):
        connect(server.conninfo("absent"))


@pytest.mark.system
def test_a_connection_has_a_name_and_limits(server: Server) -> None:
    with connect(server.conninfo("postgres"), application="reader", statement_timeout_s=1.5) as connection:
        row = connection.execute(
            "SELECT current_setting('application_name'), current_setting('statement_timeout')"
        ).fetchone()
        assert row == ("reader", "1500ms")


@pytest.mark.system
def test_a_database_is_made_once_and_only_with_the_right(server: Server) -> None:
    conninfo = ensure_database(server.conninfo("postgres"), 'odd "name"')
    assert ensure_database(server.conninfo("postgres"), 'odd "name"') == conninfo
    with connect(conninfo, autocommit=True) as connection:
        assert connection.info.dbname == 'odd "name"'
        connection.execute("DROP ROLE IF EXISTS plain")
        connection.execute("CREATE ROLE plain LOGIN PASSWORD 'p'")
    plain = make_conninfo(server.conninfo("postgres"), user="plain", password="p")
    with pytest.raises(MillstreamError, match=r"may not create it\. As an administrator"):
        ensure_database(plain, "forbidden")


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("connection failed: SSL SYSCALL error: EOF detected", True),
        ("SSL connection has been closed unexpectedly", True),
        ("could not translate host name db to address: Temporary failure in name resolution", True),
        ("could not translate host name db to address: Name or service not known", True),
        ("connection is bad: FATAL:  the database system is starting up", True),
        ("connection is bad: something that nobody has seen", True),
        ("connection is bad: FATAL:  password authentication failed for user a", False),
        ("connection is bad: FATAL:  no pg_hba.conf entry for host h, user u, database d, SSL encryption", False),
        ('connection is bad: FATAL:  database "d" does not exist', False),
        ("connection is bad: server does not support SSL, but SSL was required", False),
        ("connection is bad: SSL error: certificate verify failed", False),
    ],
)
def test_what_passes_when_connecting_fails(text: str, passes: bool) -> None:
    found = explain(psycopg.OperationalError(text), "host=h", connecting=True)
    assert isinstance(found, Unreachable) is passes


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        ("28P01", False),
        ("28000", False),
        ("3D000", False),
        ("42501", False),
        ("57P01", True),  # administrator's termination
        ("57P03", True),
        ("53300", True),
        ("08006", True),
        ("XX000", True),
    ],
)
def test_what_a_server_says_is_known_by_its_code(state: str, passes: bool) -> None:
    error = psycopg.errors.lookup(state)("the table does not exist; authentication failed")  # words that decide nothing
    assert isinstance(explain(error, "host=h"), Unreachable) is passes


def test_words_decide_nothing_once_connected() -> None:
    error = psycopg.OperationalError("consuming input failed: SSL SYSCALL error: EOF detected, does not exist")
    assert isinstance(explain(error, "host=h"), Unreachable)


@pytest.mark.system
def test_variables_of_the_environment_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGPASSWORD": "wrong",
        "PGPASSFILE": "/nonexistent",
        "PGHOST": "absent.invalid",
        "PGHOSTADDR": "127.0.0.2",
        "PGPORT": "1",
        "PGUSER": "nobody",
        "PGDATABASE": "absent",
        "PGOPTIONS": "-c statement_timeout=1",
        "PGSERVICE": "absent",
        "PGCLIENTENCODING": "LATIN1",
        "PGTZ": "Asia/Tokyo",
        "PGDATA": "/nonexistent",
        "PGSSLMODE": "require",
    }.items():
        monkeypatch.setenv(name, value)
    with Server(tmp_path / "server") as own, connect(own.database("ops"), autocommit=True) as connection:
        query = "SELECT current_setting('statement_timeout'), current_setting('TimeZone'), current_database()"
        assert connection.execute(query).fetchone() == ("0", "UTC", "ops")
