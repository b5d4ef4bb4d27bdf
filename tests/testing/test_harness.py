"""A whole application inside a test: it never touches what the working folder or the environment has the address of."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import millstream as ms
from millstream.capture.postgres.slot import slot_name
from millstream.postgresql.connect import ensure_database
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError, Settings

pytestmark = pytest.mark.system

app = ms.App("fleet")
app.table("planes", source=ms.postgres("ops", table="planes"))

torn = ms.App("fleet")
torn.table("planes", source=ms.postgres("ops", table="planes"))
torn.table("lost", source=ms.postgres("ops", table="lost"))

NEW = """
DROP TABLE IF EXISTS planes;
CREATE TABLE planes (tailnum text PRIMARY KEY, seats integer);
INSERT INTO planes VALUES ('N1', 149);
"""
SLOT = slot_name("fleet", "ops")
NOBODY = "127.0.0.1:1"  # where nothing listens


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("postgres") / "server") as running:
        yield running


@pytest.fixture
def production(server):
    """A database with rows that must stay; its address."""
    ensure_database(server.conninfo("postgres"), "production")
    address = make_conninfo(server.conninfo("postgres"), dbname="production")
    with psycopg.connect(address) as connection:
        connection.execute("DROP TABLE IF EXISTS planes")
        connection.execute("CREATE TABLE planes (tailnum text PRIMARY KEY, seats integer)")
        connection.execute("INSERT INTO planes VALUES ('real', 1)")
    return address


def left(address):
    """The rows, slots and publications of a database."""
    with psycopg.connect(address, autocommit=True) as connection:
        return tuple(
            [row[0] for row in connection.execute(query).fetchall()]
            for query in (
                "SELECT tailnum FROM planes",
                "SELECT slot_name FROM pg_replication_slots",
                "SELECT pubname FROM pg_publication",
            )
        )


def configured(monkeypatch, folder, production, how):
    """Give every part an address: in the working folder's millstream.toml, or in the environment."""
    monkeypatch.chdir(folder)
    if how == "file":
        (folder / "millstream.toml").write_text(
            f'postgres = "{production}"\nspark = "spark://{NOBODY}"\nkafka = "{NOBODY}"\n[sources]\nops = "{production}"\n'
        )
        return
    for name, value in (("KAFKA", NOBODY), ("SPARK", f"spark://{NOBODY}"), ("POSTGRES", production)):
        monkeypatch.setenv(f"MILLSTREAM_{name}", value)
    monkeypatch.setenv("MILLSTREAM_SOURCE_OPS", production)


@pytest.mark.parametrize("how", ["file", "environment"])
def test_what_is_configured_is_not_touched(tmp_path, monkeypatch, production, how):
    configured(monkeypatch, tmp_path, production, how)
    with ms.testing.running(app, tmp_path / "data", prepare={"ops": NEW}) as fleet:
        assert [row["after"]["tailnum"] for row in fleet.topic("planes")] == ["N1"]
        with fleet.database("ops") as ops:
            assert ops.execute("SELECT count(*) FROM planes").fetchone() == (1,)
    assert left(production) == (["real"], [], [])


def test_a_source_given_by_name_is_used_and_left_as_it_was(tmp_path, production):
    settings = Settings(sources={"ops": production})
    for run in ("first", "second"):  # the second would meet what the first left
        with ms.testing.running(app, tmp_path / run, settings=settings) as fleet:
            assert [row["after"]["tailnum"] for row in fleet.topic("planes")] == ["real"]
            assert left(production)[1:] == ([SLOT], [SLOT])
        assert left(production) == (["real"], [], [])


def test_a_publication_that_was_there_stays(tmp_path, production):
    with psycopg.connect(production, autocommit=True) as connection:
        connection.execute(f"CREATE PUBLICATION {SLOT} FOR TABLE planes")
    with ms.testing.running(app, tmp_path, settings=Settings(sources={"ops": production})):
        pass
    assert left(production) == (["real"], [], [SLOT])
    with psycopg.connect(production, autocommit=True) as connection:
        connection.execute(f"DROP PUBLICATION {SLOT}")


def test_what_it_made_is_removed_also_when_the_application_does_not_start(tmp_path, production):
    settings = Settings(sources={"ops": production})
    with (
        pytest.raises(MillstreamError, match="lost"),
        ms.testing.running(
            torn, tmp_path, settings=settings, prepare={"ops": "CREATE TABLE IF NOT EXISTS later (id int)"}
        ),
    ):
        pass
    assert left(production) == (["real"], [], [])


def test_the_capture_of_a_running_application_is_not_taken_over(tmp_path, production):
    with psycopg.connect(production, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        try:
            with (
                pytest.raises(MillstreamError, match=f"replication slot {SLOT}.*pg_drop_replication_slot"),
                ms.testing.running(app, tmp_path, settings=Settings(sources={"ops": production})),
            ):
                pass
            assert left(production) == (["real"], [SLOT], [])
        finally:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
