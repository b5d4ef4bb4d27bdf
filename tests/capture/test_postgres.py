"""The capture of a PostgreSQL database against the real one and a real broker: the topic equals the table."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.capture import failpoints, loop, tables
from millstream.client.admin import delete_topic
from millstream.monitor import status
from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from tests import servers
from tests.brokers import ADDRESS, Broker
from tests.capture.conftest import Source

pytestmark = pytest.mark.system


def key(value: object, name: str = "id") -> str:
    return json.dumps({name: value})


def test_copies_and_then_follows(source: Source) -> None:
    source.sql.execute("CREATE TABLE planes (id int PRIMARY KEY, model text, seats int)")
    source.sql.execute("INSERT INTO planes SELECT i, 'A' || i, i FROM generate_series(1, 3000) i")
    with source.capture("planes") as capture:
        capture.wait_ready()
        assert source.latest("planes") == source.rows("planes")
        assert {value["op"] for _, value, _, _ in source.messages("planes")} == {"r"}
        source.sql.execute("INSERT INTO planes VALUES (0, 'new', 1)")
        source.sql.execute("UPDATE planes SET model = 'changed' WHERE id = 7")
        source.sql.execute("DELETE FROM planes WHERE id = 9")
        source.settled()
        assert source.latest("planes") == source.rows("planes")
        after = [(k["id"], v and (v["op"], v["before"], v["after"])) for k, v, _, _ in source.messages("planes")]
        assert [v for k, v in after if k == 0] == [("c", None, {"id": 0, "model": "new", "seats": 1})]
        assert [v for k, v in after if k == 7][1:] == [("u", None, {"id": 7, "model": "changed", "seats": 7})]
        assert [v for k, v in after if k == 9][1:] == [("d", {"id": 9}, None), None]
        found = next(v for k, v, _, _ in source.messages("planes") if k["id"] == 0)
        assert found["source"]["table"] == "planes" and found["source"]["schema"] == "public"
        assert found["source"]["snapshot"] == "false" and found["source"]["lsn"] > 0
        assert capture.stop() == 0


def test_the_order_over_all_topics_can_be_rebuilt(source: Source) -> None:
    for name in ("a", "b"):
        source.sql.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")  # type: ignore[arg-type]
    with source.capture("a", "b") as capture, connect(source.conninfo) as one, connect(source.conninfo) as two:
        capture.wait_ready()
        one.execute("INSERT INTO a VALUES (1, 1)")  # two transactions whose changes alternate in the source's log
        two.execute("INSERT INTO a VALUES (2, 2)")
        one.execute("INSERT INTO b VALUES (1, 3)")
        two.execute("INSERT INTO b VALUES (2, 4)")
        two.commit()
        one.execute("UPDATE a SET n = 5 WHERE id = 1")
        one.commit()
        source.settled()
        found = [v for name in ("a", "b") for _, v, _, _ in source.messages(name)]

        def place(value: dict[str, Any]) -> tuple[int, int]:
            commit, _ = json.loads(value["source"]["sequence"])
            return int(commit), value["transaction"]["total_order"]

        assert [v["after"]["n"] for v in sorted(found, key=place)] == [2, 4, 1, 3, 5]
        assert [v["transaction"]["data_collection_order"] for v in sorted(found, key=place)] == [1, 1, 1, 1, 2]


def test_announces_the_columns(source: Source) -> None:
    source.sql.execute("CREATE TABLE planes (id bigint PRIMARY KEY, price numeric(10,2), seen timestamptz NOT NULL)")
    with source.capture("planes") as capture:
        capture.wait_ready()
        source.sql.execute("ALTER TABLE planes ADD COLUMN tags text[]")
        source.sql.execute("INSERT INTO planes VALUES (1, 1.10, '2013-01-01 00:00+00', '{a}')")
        source.settled()
        found = [
            v for k, v, _, _ in servers.messages(source.kafka, "_millstream.schemas") if k == source.topic("planes")
        ]
        columns = [
            {"name": "id", "kind": "long", "nullable": False},
            {"name": "price", "kind": "decimal", "nullable": True, "precision": 10, "scale": 2},
            {"name": "seen", "kind": "timestamp", "nullable": False},
        ]
        first = found[0].pop("version")
        assert found[0] == {"topic": source.topic("planes"), "columns": columns, "key": ["id"]}
        assert found[-1]["columns"] == [*columns, {"name": "tags", "kind": "json", "nullable": True}]
        assert found[-1]["version"] != first


def test_a_message_is_decoded_with_the_columns_that_it_was_written_with(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t VALUES (1, 1)")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.sql.execute("INSERT INTO t VALUES (2, 2)")
        source.sql.execute("ALTER TABLE t ALTER COLUMN n TYPE text")
        source.sql.execute("INSERT INTO t VALUES (3, 'three')")
        servers.wait_for(lambda: source.latest("t") == source.rows("t"), "the rows are copied again")
    schemas = {k: v for k, v, _, _ in servers.messages(source.kafka, "_millstream.schemas")}
    kinds: dict[type, set[str]] = {int: set(), str: set()}
    for _, value, _, _ in source.messages("t"):
        schema = schemas[f"{source.topic('t')}/{value['source']['schema_version']}"]
        kinds[type(value["after"]["n"])] |= {c["kind"] for c in schema["columns"] if c["name"] == "n"}
    assert kinds == {int: {"long"}, str: {"string"}}


def test_values_of_every_type_are_the_same_copied_and_followed(source: Source) -> None:
    source.sql.execute("CREATE TYPE mood AS ENUM ('fine', 'so, so')")
    source.sql.execute("CREATE DOMAIN posint AS int CHECK (VALUE > 0)")
    source.sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, i2 int2, i8 int8, f4 float4, f8 float8, n numeric, b bool, t text, v varchar(9),"
        " c char(3), u uuid, tz timestamptz, ts timestamp, d date, tm time, iv interval, y bytea, j json, jb jsonb, ia int[],"
        ' ta text[], m mood, p posint, "odd ""name%" text, pa posint[], fa float8[], ja jsonb[], ip inet)'
    )
    rows = [
        """(1, -32768, 9223372036854775807, 1.1, 1e-300, 12345678901234567890.123456789, true,
        E'tab\\t"quote" \\\\ \\n\\u00e9\\U0001F600',
        'v', 'c', '00000000-0000-0000-0000-000000000001', '2013-01-01 05:00:00.123456+02', '2013-01-01 05:00', '2013-02-28',
        '12:00', '1 day 2 hours', '\\x00ff', '{"a": [1, null]}', '{"b":  2.50}', '{{1,2},{3,NULL}}',
        ARRAY['a,b', 'NULL', NULL, E'q"\\\\', ''], 'so, so', 5, 'odd', '{1,2}', '{1.5,NaN}',
        ARRAY['{"x": 1}'::jsonb], '10.0.0.1')""",
        "(2" + ", NULL" * 27 + ")",
        """(3, 0, 0, 'NaN', 'Infinity', 'NaN', false, '', '\\N', '', NULL, 'infinity', '-infinity', 'infinity', NULL, NULL, '',
        NULL,
        'null', '{}', '{}', 'fine', 1, '', '{}', '{}', '{}', NULL)""",
        "(4, 1, 1, '-Infinity', 'NaN', 0.00, true, 'x', 'x', 'x', NULL, '0044-03-15 BC', '0001-01-01 BC', '0044-03-15 BC',"
        " NULL, NULL, NULL, '\"text\"', '[]', '[2:3]={7,8}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ]
    source.sql.execute(f"INSERT INTO t VALUES {', '.join(rows)}")  # type: ignore[arg-type]
    with source.capture("t") as capture:
        capture.wait_ready()
        copied = source.latest("t")
        source.sql.execute("CREATE TEMPORARY TABLE kept AS TABLE t")
        source.sql.execute("DELETE FROM t")
        source.sql.execute("INSERT INTO t TABLE kept")
        source.settled()
        followed = source.latest("t")
    assert copied == followed
    one = copied[key(1)]
    assert one["i8"] == 9223372036854775807 and one["f4"] == 1.1 and one["f8"] == 1e-300
    assert one["n"] == "12345678901234567890.123456789" and one["b"] is True
    assert one["t"] == 'tab\t"quote" \\ \né😀' and one["c"] == "c  "
    assert one["tz"] == "2013-01-01T03:00:00.123456+00:00" and one["ts"] == "2013-01-01T05:00:00"
    assert one["d"] == "2013-02-28" and one["iv"] == "P1DT2H" and one["y"] == "AP8="
    assert json.loads(one["j"]) == {"a": [1, None]} and json.loads(one["jb"]) == {"b": 2.5}
    assert json.loads(one["ia"]) == [[1, 2], [3, None]]
    assert json.loads(one["ta"]) == ["a,b", "NULL", None, 'q"\\', ""]
    assert one["m"] == "so, so" and one["p"] == 5 and one['odd "name%'] == "odd" and one["pa"] == "[1,2]"
    assert one["fa"] == '[1.5,"NaN"]' and json.loads(one["ja"]) == [{"x": 1}]
    assert all(value is None for name, value in copied[key(2)].items() if name != "id")
    three = copied[key(3)]
    assert three["f4"] == "NaN" and three["f8"] == "Infinity" and three["n"] == "NaN" and three["v"] == "\\N"
    assert three["tz"].startswith("9999-12-31T") and three["ts"].startswith("0001-01-01T") and three["y"] == ""
    four = copied[key(4)]
    assert four["d"] == "-0043-03-15" and four["ts"] == "0000-01-01T00:00:00" and four["ia"] == "[7,8]"


def test_key_changes_move_the_row(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (a int, b text, c int, PRIMARY KEY (b, a))")
    source.sql.execute("INSERT INTO t VALUES (1, 'x', 1), (2, 'x', 2)")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.sql.execute("UPDATE t SET a = 10, c = 5 WHERE a = 1")
        source.sql.execute("UPDATE t SET c = 6 WHERE a = 10")
        source.settled()
        got = [
            (k, v and v["op"]) for k, v, _, _ in source.messages("t") if k in ({"a": 1, "b": "x"}, {"a": 10, "b": "x"})
        ]
        assert [op for k, op in got if k["a"] == 1] == ["r", "d", None]
        assert [op for k, op in got if k["a"] == 10] == ["c", "u"]
        source.sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        source.sql.execute("UPDATE t SET a = 20 WHERE a = 10")
        source.sql.execute("UPDATE t SET c = 9 WHERE a = 20")
        source.sql.execute("DELETE FROM t WHERE a = 2")
        source.settled()
        values = [v for k, v, _, _ in source.messages("t") if v]
        assert {"a": 2, "b": "x", "c": 2} in [v["before"] for v in values]  # the whole old row
        assert source.latest("t") == {json.dumps({"a": 20, "b": "x"}): {"a": 20, "b": "x", "c": 9}}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_large_values_that_an_update_leaves_alone_are_not_lost(source: Source, identity: str) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, big text, n int)")
    source.sql.execute("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
    source.sql.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")  # type: ignore[arg-type]
    source.sql.execute("INSERT INTO t SELECT i, repeat(i::text, 5000), 0 FROM generate_series(1, 20) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.sql.execute("UPDATE t SET n = 1")
        source.sql.execute("UPDATE t SET id = id + 100, n = 2 WHERE id <= 5")
        with source.sql.transaction():
            source.sql.execute("UPDATE t SET n = 3 WHERE id = 6")
            source.sql.execute("DELETE FROM t WHERE id = 6")
            source.sql.execute("INSERT INTO t VALUES (7000, repeat('z', 3000000), 0)")
            source.sql.execute("UPDATE t SET n = 8 WHERE id = 7000")
        source.settled()
        assert source.latest("t") == source.rows("t")
        for k, value, _, _ in source.messages("t"):
            if value and value["after"]:
                assert value["after"]["big"], k


def test_large_values_are_read_for_many_updates_at_once(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (a int, b text, big text, doc jsonb, n int, PRIMARY KEY (b, a))")
    source.sql.execute("CREATE TABLE u (id bytea PRIMARY KEY, big text, n int)")
    for column in ("t ALTER COLUMN big", "t ALTER COLUMN doc", "u ALTER COLUMN big"):
        source.sql.execute(f"ALTER TABLE {column} SET STORAGE EXTERNAL")  # type: ignore[arg-type]
    source.sql.execute(
        "INSERT INTO t SELECT i, 'x' || chr(39) || i, repeat(i::text, 3000), jsonb_build_object('v', repeat(i::text, 3000)), 0"
        " FROM generate_series(1, 600) i"
    )
    source.sql.execute("INSERT INTO u SELECT int4send(i), repeat(i::text, 3000), 0 FROM generate_series(1, 600) i")

    def queries() -> int:
        source.sql.execute("SELECT pg_stat_clear_snapshot()")
        row = source.sql.execute(
            "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return int(row[0])

    with source.capture("t", "u") as capture:
        capture.wait_ready()
        before = queries()  # each snapshot of ours is rolled back
        for i in range(1, 4):
            with source.sql.transaction():
                source.sql.execute("UPDATE t SET n = %s", [i])
                source.sql.execute("UPDATE u SET n = %s", [i])
                source.sql.execute("INSERT INTO u VALUES (%s, 'new', 0)", [b"new" + bytes([i])])
                source.sql.execute("UPDATE t SET a = a + 1000 WHERE a = %s", [i])
                source.sql.execute("DELETE FROM u WHERE id = int4send(%s)", [i])
                source.sql.execute("TRUNCATE t") if i == 2 else None
                source.sql.execute("INSERT INTO t VALUES (%s, 'y', repeat('y', 5000), NULL, 0)", [5000 + i])
                source.sql.execute("UPDATE t SET n = 7 WHERE b = 'y'")
        source.settled()
        latest = source.latest("t"), source.latest("u")
        assert len(latest[0]) == 2 and len(latest[1]) == 600
        found = [v for name in ("t", "u") for _, v, _, _ in source.messages(name) if v and v["op"] == "u"]
        assert len(found) > 1500 and all(v["after"]["big"] for v in found)
        assert capture.stop() == 0
        servers.wait_for(lambda: queries() > before, "the queries are counted")
        assert queries() - before < 500
    for name, rows in zip(("t", "u"), latest, strict=True):
        there = source.sql.execute(f"SELECT n, big FROM {name}").fetchall()  # type: ignore[arg-type]
        assert sorted((v["n"], v["big"]) for v in rows.values()) == sorted((n, big) for n, big in there)


def test_truncate_removes_every_key(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("CREATE TABLE other (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 100) i")
    source.sql.execute("INSERT INTO other SELECT i, i FROM generate_series(1, 5) i")
    with source.capture("t", "other") as capture:
        capture.wait_ready()
        with source.sql.transaction():
            source.sql.execute("INSERT INTO t VALUES (200, 1)")
            source.sql.execute("TRUNCATE t")
            source.sql.execute("INSERT INTO t VALUES (1, 42), (300, 1)")
        source.settled()
        assert source.latest("t") == source.rows("t") and len(source.latest("t")) == 2
        assert len(source.latest("other")) == 5
        assert [v for k, v, _, _ in source.messages("t") if k == {"id": 50}][-1] is None
        source.sql.execute("TRUNCATE t, other")
        source.settled()
        assert source.latest("t") == {} and source.latest("other") == {}


def test_schema_changes_while_running(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, a int, gone int)")
    source.sql.execute("INSERT INTO t SELECT i, i, i FROM generate_series(1, 50) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.sql.execute("ALTER TABLE t ADD COLUMN plain text")
        source.sql.execute("UPDATE t SET plain = 'p' WHERE id < 10")
        source.sql.execute("ALTER TABLE t DROP COLUMN gone")
        source.sql.execute("INSERT INTO t VALUES (100, 1, 'q')")
        source.sql.execute("ALTER TABLE t RENAME COLUMN a TO b")
        source.sql.execute("UPDATE t SET b = 7 WHERE id = 1")
        source.sql.execute("ALTER TABLE t ADD COLUMN filled int DEFAULT 5")  # changes every row, and no log tells
        source.sql.execute("ALTER TABLE t ALTER COLUMN id TYPE bigint")
        source.settled()

        def equal() -> bool:
            return source.latest("t") == source.rows("t")

        servers.wait_for(equal, "the topic has the new columns of all rows")
        source.sql.execute("INSERT INTO t VALUES (5000000000, 1, 'q', 6)")
        source.settled()
        assert source.latest("t")[key(5000000000)] == {"id": 5000000000, "b": 1, "plain": "q", "filled": 6}


def test_writes_during_the_copy(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, pad text DEFAULT repeat('x', 200))")
    source.sql.execute("INSERT INTO t (id, n) SELECT i, 0 FROM generate_series(1, 30000) i")
    source.sql.execute(
        "ALTER ROLE CURRENT_USER SET synchronous_commit = off"
    )  # commits that show before they are written out
    try:
        with Writer(source) as writer, source.capture("t", held={failpoints.CHUNK_READ: 0.05}) as capture:
            capture.wait_ready()
            writer.stop()
            assert writer.count > 20
            source.settled()
    finally:
        source.sql.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")
    assert source.latest("t") == source.rows("t")
    newest: dict[int, int] = {}
    for k, value, _, _ in source.messages("t"):
        if value is not None and value["after"] is not None:
            n = value["after"]["n"]
            assert n >= newest.get(k["id"], 0), f"{value} came after n = {newest[k['id']]}"
            newest[k["id"]] = n


def test_a_table_that_is_added_later_is_copied_while_others_are_followed(source: Source) -> None:
    source.sql.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i")
    source.sql.execute("INSERT INTO a VALUES (1, 1)")
    with source.capture("a") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("INSERT INTO a VALUES (2, 2)")  # while nobody looks
    with connect(source.conninfo) as other, Writer(source) as writer:
        other.execute("INSERT INTO t VALUES (-1, 1)")  # a transaction from before the table is published
        with source.capture("a", "t") as capture:
            time.sleep(
                1
            )  # not needed for the result; lets the capture publish the table in the middle of that transaction
            other.execute("INSERT INTO t VALUES (-2, 1)")
            other.commit()
            capture.wait_ready()
            source.sql.execute("INSERT INTO a VALUES (3, 3)")
            writer.stop()
            source.settled()
            assert source.latest("t") == source.rows("t")
            assert source.latest("a") == source.rows("a")
            assert [v["op"] for _, v, _, _ in source.messages("a")].count("r") == 1  # not copied again


def test_an_idle_slot_does_not_hold_the_log(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.sql.execute("CREATE TABLE busy (id int)")
    with source.capture("t") as capture:
        capture.wait_ready()
        for _ in range(3):
            source.sql.execute("INSERT INTO busy SELECT generate_series(1, 10000)")
            now = source.position()
            servers.wait_for(
                lambda now=now: source.confirmed() >= now, "the slot advances although nothing is captured", 10
            )
        with connect(source.conninfo, database="postgres", autocommit=True) as other:
            other.execute("CREATE TABLE IF NOT EXISTS elsewhere (id int)")
            other.execute("INSERT INTO elsewhere SELECT generate_series(1, 10000)")
        now = source.position()
        servers.wait_for(lambda: source.confirmed() >= now, "the slot advances although another database is busy", 10)


def test_a_lost_slot_is_replaced_and_what_was_missed_is_made_good(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 2000) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("SELECT pg_drop_replication_slot(%s)", [source.slot()])
    source.sql.execute("DELETE FROM t WHERE id < 1000")
    source.sql.execute("UPDATE t SET n = 1 WHERE id > 1500")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.settled()
        assert source.latest("t") == source.rows("t")
        assert "is gone" in capture.log()


def test_a_lost_state_and_a_moved_slot_are_noticed(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("DELETE FROM t WHERE id = 1")
    with source.capture("t", state="another") as capture:  # as after the data folder was thrown away
        capture.wait_ready()
        assert source.latest("t") == source.rows("t")
        source.sql.execute("DELETE FROM t WHERE id = 2")
        source.settled()
        capture.stop()
    with source.capture("t") as capture:  # the first folder again: its state is older than the slot
        capture.wait_ready()
        assert "moved by somebody else" in capture.log()
        assert source.latest("t") == source.rows("t")


def test_log_that_the_source_removed_is_made_good(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("CREATE TABLE busy (id int, pad text)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("DELETE FROM t WHERE id < 50")
    source.sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    source.sql.execute("SELECT pg_reload_conf()")
    try:

        def lost() -> bool:
            source.sql.execute("INSERT INTO busy SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i")
            source.sql.execute("SELECT pg_switch_wal()")
            source.sql.execute("CHECKPOINT")
            query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
            return source.sql.execute(query, [source.slot()]).fetchone() == ("lost",)

        servers.wait_for(lost, "the slot loses its log")
    finally:
        source.sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        source.sql.execute("SELECT pg_reload_conf()")
    with source.capture("t") as capture:
        capture.wait_ready()
        assert "has lost its log" in capture.log()
        assert source.latest("t") == source.rows("t") and len(source.latest("t")) == 51


def test_changes_that_passed_by_the_publication_are_made_good(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("CREATE TABLE other (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i")
    with source.capture("t", "other") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute(f"ALTER PUBLICATION {source.slot()} DROP TABLE t")  # type: ignore[arg-type]
    source.sql.execute("DELETE FROM t WHERE id = 1")
    with source.capture("t", "other") as capture:
        capture.wait_ready()
        assert "was not watching it" in capture.log()
        assert source.latest("t") == source.rows("t")
        capture.stop()
    source.sql.execute(f"DROP PUBLICATION {source.slot()}")  # type: ignore[arg-type]
    source.sql.execute("DELETE FROM t WHERE id = 2")
    with source.capture("t", "other") as capture:
        capture.wait_ready()
        assert "is gone" in capture.log()
        assert source.latest("t") == source.rows("t")
        source.sql.execute("DROP TABLE t")
        source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        source.sql.execute("INSERT INTO t VALUES (5, 5)")
        servers.wait_for(lambda: "it is another table than before" in capture.log(), "the new table is noticed")
        servers.wait_for(lambda: source.latest("t") == source.rows("t"), "the new table is copied")
        assert source.latest("t") == source.rows("t") == {key(5): {"id": 5, "n": 5}}


def test_a_topic_that_was_deleted_is_filled_again(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    delete_topic(source.kafka, source.topic("t"))
    with source.capture("t") as capture:
        capture.wait_ready()
        assert "topic is another one than before" in capture.log()
        assert source.latest("t") == source.rows("t")


def test_another_primary_key_replaces_every_row(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)")
    source.sql.execute("INSERT INTO t SELECT i, i * 10 FROM generate_series(1, 10) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        with source.sql.transaction():
            source.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)")
            source.sql.execute("UPDATE t SET id = 7 WHERE n = 10")
            source.sql.execute("DELETE FROM t WHERE n = 20")
        servers.wait_for(lambda: source.latest("t") == source.rows("t", "n"), "every row has its new key")


def test_goes_on_after_the_broker_was_away(source: Source, tmp_path: Path) -> None:
    if ADDRESS:
        pytest.skip("ends a broker of its own")
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    (tmp_path / "broker").mkdir()
    broker = Broker(tmp_path / "broker" / "log").start()
    source.kafka = broker.kafka
    try:
        with source.capture("t") as capture:
            capture.wait_ready()
            broker.end(signal.SIGKILL)
            source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10000) i")
            source.sql.execute("UPDATE t SET n = 1")
            broker.start()
            source.settled()
            assert source.latest("t") == source.rows("t")
            assert capture.stop() == 0
    finally:
        broker.end()


def test_says_that_the_source_went_away_and_goes_on(source: Source, tmp_path: Path) -> None:
    with Server(tmp_path / "pg") as server:
        conninfo = server.database("ops")
        with connect(conninfo, autocommit=True) as sql:
            sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        table = [source.table("t")]
        with servers.CaptureProcess(source.app, conninfo, table, source.kafka, tmp_path / "state") as capture:
            capture.wait_ready()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            assert capture.process.wait(30) == 1
            assert "Unreachable: " in capture.log()
    with Server(tmp_path / "pg") as server:
        with connect(server.conninfo("ops"), autocommit=True) as sql:
            sql.execute("INSERT INTO t VALUES (1, 1)")
        with servers.CaptureProcess(
            source.app, server.conninfo("ops"), table, source.kafka, tmp_path / "state"
        ) as capture:
            capture.wait_ready()
            servers.wait_for(lambda: source.latest("t") == {key(1): {"id": 1, "n": 1}}, "the row arrives")


def test_reports_its_status(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        source.sql.execute("INSERT INTO t VALUES (11, 1)")
        source.settled()
        facts = servers.wait_for(
            lambda: (f := status.read(source.kafka, source.app).get(("capture", "ops"))) and f["changes"] == 1 and f,
            "a status",
        )
        assert facts["state"] == "streaming"
        table = {"rows": 10, "total": 10, "copied": True, "state": "streaming", "reason": ""}
        assert facts["tables"] == {source.topic("t"): table}
        assert facts["lsn"] > 0


def test_rows_that_a_changed_table_has_are_not_undone_by_older_changes(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.sql.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    with source.capture("t") as capture:
        capture.wait_ready()
        capture.stop()
    source.sql.execute("UPDATE t SET n = 1 WHERE id = 5")  # in the old form, still to come when the capture starts
    source.sql.execute("ALTER TABLE t ADD COLUMN filled int DEFAULT 5")
    source.sql.execute("ALTER TABLE t RENAME COLUMN n TO m")
    source.sql.execute("UPDATE t SET m = 2 WHERE id = 6")
    with source.capture("t") as capture:
        capture.wait_ready()
        servers.wait_for(lambda: source.latest("t") == source.rows("t"), "every row has its new columns")
        source.sql.execute("ALTER TABLE t ADD COLUMN empty text")
        source.sql.execute("UPDATE t SET empty = 'no' WHERE id = 7")
        source.settled()
        time.sleep(loop.CHECK_S + 1)  # nothing is to happen: a column that is null everywhere is no reason to copy
        assert capture.log().count("is copied again") == 1


@pytest.mark.parametrize(
    ("before", "now", "defaulted", "result"),
    [
        ({"a": "1:int"}, {"a": "1:int"}, (), False),
        ({"a": "1:int", "b": "2:int"}, {"a": "1:int"}, (), False),
        ({"a": "1:int"}, {"a": "1:int", "b": "2:int"}, (), False),
        ({"a": "1:int"}, {"a": "1:int", "b": "2:int"}, ("b",), True),
        ({"a": "1:int"}, {"a": "1:bigint"}, (), True),
        ({"a": "1:int"}, {"b": "1:int"}, (), True),
        ({"a": "1:int"}, {"a": "2:int"}, (), True),
    ],
)
def test_which_changes_of_columns_change_rows(before, now, defaulted, result) -> None:
    assert tables.altered(before, now, defaulted) is result


ONCE = (failpoints.PUBLISHED, failpoints.SLOT_CREATED, failpoints.COPIED)  # passed once by a capture of one table
CRASHES = [
    *failpoints.ALL,
    *(f"{name}:2" for name in failpoints.ALL if name not in ONCE),
    f"{failpoints.CHANGE_SENT}:40",
    f"{failpoints.TRUNCATING}:100",
]


@pytest.mark.fault
@pytest.mark.parametrize("failpoint", CRASHES)
def test_a_crash_loses_nothing(source: Source, failpoint: str) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, pad text DEFAULT repeat('x', 200))")
    source.sql.execute("INSERT INTO t (id, n) SELECT i, 0 FROM generate_series(1, 3000) i")
    if failpoint.startswith(failpoints.SWEEPING):  # a topic with an earlier life
        with source.capture("t", state="earlier") as capture:
            capture.wait_ready()
            capture.stop()
        source.sql.execute("DELETE FROM t WHERE id <= 10")
    with Writer(source, truncates=failpoint.startswith(failpoints.TRUNCATING)) as writer:
        with source.capture("t", failpoint=failpoint) as capture:
            servers.wait_for(lambda: capture.process.poll() is not None, f"the crash at {failpoint}")
            assert capture.process.returncode == -9, capture.log()
        with source.capture("t") as capture:
            capture.wait_ready()
            writer.stop()
            source.settled()
            assert source.latest("t") == source.rows("t")


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_lose_nothing(source: Source, seed: int) -> None:
    chance = random.Random(seed)
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, pad text DEFAULT repeat('x', 200))")
    source.sql.execute("INSERT INTO t (id, n) SELECT i, 0 FROM generate_series(1, 30000) i")
    with Writer(source, seed=seed) as writer:
        for _ in range(5):
            with source.capture("t") as capture:
                time.sleep(chance.uniform(0.4, 2.0))  # the moment of the kill is what is random here
                capture.kill()
        with source.capture("t") as capture:
            capture.wait_ready()
            writer.stop()
            source.settled()
            assert source.latest("t") == source.rows("t")


def test_says_what_is_wrong_with_a_source(source: Source) -> None:
    source.sql.execute("CREATE TABLE no_key (id int)")
    source.sql.execute("CREATE TABLE nothing (id int PRIMARY KEY)")
    source.sql.execute("ALTER TABLE nothing REPLICA IDENTITY NOTHING")
    source.sql.execute("CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)")
    for name, words in {
        "absent": "has no table public.absent",
        "no_key": "has no primary key",
        "nothing": "replica identity NOTHING",
        "fleeting": "unlogged",
    }.items():
        with source.capture(name, state=name) as capture:
            assert capture.process.wait(30) != 0
            assert words in capture.log()
    assert source.sql.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


class Writer:
    """Writes into the table t from a thread of its own until it is stopped: inserts, updates, deletes, key changes, rollbacks."""

    def __init__(self, source: Source, *, seed: int = 0, truncates: bool = False) -> None:
        self.count = 0
        self._conninfo = source.conninfo
        self._chance = random.Random(seed)
        self._truncates = truncates
        self._fresh = itertools.count(100_000)
        self._stop = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._problem:
            raise self._problem

    def _run(self) -> None:
        try:
            with connect(self._conninfo) as connection:
                while not self._stop.wait(0.002):
                    self._write(connection)
                    self.count += 1
        except BaseException as error:
            self._problem = error

    def _write(self, connection: psycopg.Connection) -> None:
        chance, count = self._chance, self.count
        for _ in range(chance.randint(1, 8)):
            some = chance.randint(1, 40000)
            connection.execute(
                "INSERT INTO t (id, n) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n", [some, count]
            )
            connection.execute("UPDATE t SET n = %s WHERE id BETWEEN %s AND %s", [count, some, some + 3])
            if chance.random() < 0.3:
                connection.execute("DELETE FROM t WHERE id = %s", [chance.randint(1, 40000)])
            if chance.random() < 0.3:
                connection.execute("UPDATE t SET id = %s WHERE id = %s", [next(self._fresh), some])
        if self._truncates and count % 400 == 150:
            connection.execute("TRUNCATE t")
        connection.rollback() if chance.random() < 0.1 else connection.commit()
