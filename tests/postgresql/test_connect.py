"""Connections and what is said when there is none."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from millstream.postgresql.connect import address, connect, ensure_database, with_database
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError


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
