"""Tables that cannot be captured stand still alone, say why, and come back when they are mended."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.monitor import status
from millstream.postgresql.connect import connect
from tests import servers
from tests.capture.conftest import Source, settings

BREAKING = {
    "no key": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ALTER TABLE public.t ADD PRIMARY KEY",
    ),
    "identity": (
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "ALTER TABLE public.t REPLICA IDENTITY DEFAULT;",
    ),
    "dropped": (
        "ALTER TABLE t RENAME TO away",
        "DROP TABLE IF EXISTS away; CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (70, 7)",
        "has no table public.t",
    ),
    "unlogged": (
        "ALTER PUBLICATION {slot} DROP TABLE t; ALTER TABLE t SET UNLOGGED",
        "ALTER TABLE t SET LOGGED",
        "unlogged",
    ),
}


@pytest.fixture
def two(source: Source) -> Source:
    """Two tables, t and other."""
    for name in ("t", "other"):
        source.sql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")  # type: ignore[arg-type]
        source.sql.execute(f"INSERT INTO {name} SELECT i, 0 FROM generate_series(1, 50) i")  # type: ignore[arg-type]
    return source


def said(source: Source, name: str) -> dict[str, Any]:
    """What the status says of a table."""
    facts = status.read(source.kafka, source.app).get(("capture", "ops"), {})
    found: dict[str, Any] = facts.get("tables", {}).get(source.topic(name), {})
    return found


def stands_still(source: Source, words: str) -> None:
    """Wait until t stands still and says why, while the other table is followed."""
    servers.wait_for(lambda: said(source, "t").get("state") == "stopped", "t stands still")
    servers.wait_for(lambda: words in said(source, "t")["reason"], f"it says {words!r}")
    source.sql.execute("UPDATE other SET n = n + 1")
    servers.wait_for(lambda: source.latest("other") == source.rows("other"), "the other table is followed")
    servers.wait_for(lambda: said(source, "other")["state"] == "streaming", "it says so")


@pytest.mark.system
@pytest.mark.parametrize("how", BREAKING)
def test_a_table_that_breaks_stands_still_alone_until_it_is_mended(two: Source, how: str) -> None:
    breaking, mending, words = BREAKING[how]
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        two.sql.execute(breaking.format(slot=two.slot()))  # type: ignore[arg-type]
        if how == "no key":
            two.sql.execute("INSERT INTO t VALUES (60, 1)")  # a change without a key, before anybody has looked
        stands_still(two, words)
        if how in ("no key", "identity"):
            two.sql.execute("UPDATE t SET n = 5 WHERE id < 10")  # refused while such a table is published
            two.sql.execute("DELETE FROM t WHERE id > 40")
        two.sql.execute(mending)  # type: ignore[arg-type]
        servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is copied when it is mended")
        two.sql.execute("UPDATE t SET n = 9 WHERE id = 1")
        servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is followed")
        servers.wait_for(lambda: said(two, "t")["state"] == "streaming", "it says so")
        assert capture.stop() == 0


@pytest.mark.system
def test_a_table_that_is_bad_from_the_start(two: Source) -> None:
    two.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        stands_still(two, "ALTER TABLE public.t ADD PRIMARY KEY")
        capture.kill()
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        two.sql.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is copied when it is mended")
        capture.kill()
    two.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        stands_still(two, "ALTER TABLE public.t ADD PRIMARY KEY")
        capture.kill()
    two.sql.execute("DELETE FROM t WHERE id < 20")
    two.sql.execute("ALTER TABLE t ADD PRIMARY KEY (id)")  # while nobody looks
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        assert two.latest("t") == two.rows("t") and len(two.latest("t")) == 31


@pytest.mark.system
def test_rights_that_are_taken_and_given(two: Source) -> None:
    two.sql.execute("DROP ROLE IF EXISTS reader")
    two.sql.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'p'")
    two.sql.execute(f'GRANT CREATE ON DATABASE "{two.app}" TO reader')  # type: ignore[arg-type]
    two.sql.execute("GRANT CREATE, USAGE ON SCHEMA public TO reader")
    two.sql.execute("ALTER TABLE other OWNER TO reader")
    two.sql.execute("GRANT SELECT ON t TO reader")
    two.conninfo += " user=reader password=p"
    try:
        with two.capture("t", "other") as capture:
            capture.wait_ready()
            stands_still(two, "may not publish public.t")
            two.sql.execute("ALTER TABLE t OWNER TO reader")
            servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is copied")
            two.sql.execute("REVOKE SELECT ON t FROM reader")
            stands_still(two, "GRANT SELECT ON public.t TO reader")
            two.sql.execute("UPDATE t SET n = 3")
            two.sql.execute("GRANT SELECT ON t TO reader")
            servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is copied again")
    finally:
        capture.kill()
        for name in ("t", "other"):
            two.sql.execute(f"ALTER TABLE {name} OWNER TO CURRENT_USER")  # type: ignore[arg-type]
        two.sql.execute(f"DROP PUBLICATION {two.slot()}")  # type: ignore[arg-type]
        two.sql.execute("DROP OWNED BY reader")
        two.sql.execute("DROP ROLE reader")


@pytest.mark.system
def test_a_locked_table_holds_up_nobody_else(two: Source) -> None:
    with two.capture("other") as capture:
        capture.wait_ready()
        capture.stop()
    with connect(two.conninfo) as lock, two.capture("t", "other") as capture:
        servers.wait_for(lambda: said(two, "t"), "it runs")
        lock.execute("LOCK TABLE t")
        two.sql.execute("UPDATE other SET n = 8")
        servers.wait_for(lambda: two.latest("other") == two.rows("other"), "the other table is followed")
        lock.rollback()
        capture.wait_ready()
        assert two.latest("t") == two.rows("t")


@pytest.mark.system
def test_a_key_that_was_renamed_while_its_changes_were_unread(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("UPDATE t SET n = 1 WHERE id = 3")
    source.sql.execute("ALTER TABLE t RENAME COLUMN id TO number")
    source.sql.execute("UPDATE t SET n = 2 WHERE number = 4")
    with source.capture("t") as capture:
        servers.wait_for(lambda: source.latest("t") == source.rows("t", "number"), "every row has its new key")
        assert "stands still" not in capture.log()


LARGE = "UPDATE t SET big = repeat('x', 17 << 20) WHERE id = 7"
SMALL = "UPDATE t SET big = 'small', n = 1 WHERE id = 7"


@pytest.mark.system
@pytest.mark.parametrize("when", ["before", "while", "log"])
def test_a_row_that_the_log_does_not_take_has_its_table_alone_stand_still(two: Source, when: str) -> None:
    words = 'does not take the row with key {"id":7} of 178'
    two.sql.execute("ALTER TABLE t ADD COLUMN big text")
    if when == "before":
        two.sql.execute(LARGE)
    with two.capture("t", "other") as capture:
        capture.wait_ready()
        if when == "while":
            two.sql.execute(LARGE)
        elif when == "log":  # somebody lowers the limit of the topic
            words = "Set max.message.bytes=16777216"
            settings(two.kafka, two.topic("t"), {"max.message.bytes": "10000"})
            two.sql.execute("UPDATE t SET big = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i)")
        two.sql.execute("UPDATE t SET n = 3 WHERE id = 8")
        stands_still(two, words)
        two.settled()  # the source's log is let go of
        if when == "while":  # the same after a restart
            assert capture.stop() == 0
            capture = two.capture("t", "other")
            capture.wait_ready()
            stands_still(two, words)
        if when == "log":
            settings(two.kafka, two.topic("t"), {"max.message.bytes": "16777216"})
        else:
            two.sql.execute(SMALL)
        servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is copied when it is mended", 60)
        two.sql.execute("UPDATE t SET n = 9 WHERE id = 1")
        servers.wait_for(lambda: two.latest("t") == two.rows("t"), "the table is followed")
        assert capture.stop() == 0
