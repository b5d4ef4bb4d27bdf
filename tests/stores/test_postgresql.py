"""Batches into a table, each once, with every value that PostgreSQL can hold."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server
from millstream.settings import MillstreamError
from millstream.stores import checkpoints, postgresql
from millstream.stores import target as targets
from millstream.stores.store import Claim
from millstream.stores.target import Column, Target

FIRST = uuid.UUID(int=1)


@pytest.fixture
def db(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """A connection to an empty store of views."""
    conninfo = server.database("views")
    with connect(conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS app CASCADE")
        connection.execute("DROP SCHEMA IF EXISTS millstream CASCADE")


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def write(
    db: psycopg.Connection[Any], rows: pa.Table, batch: int, key: list[str] | None = None, query_id: uuid.UUID = FIRST
) -> Any:
    target = Target.of("app", "view", rows.schema, key or ["k"])
    claim = Claim("app", "view", "host:/data", str(query_id))
    postgresql.prepare(db, target, claim)
    return postgresql.apply(db, target, rows, claim=claim, batch_id=batch)


def noted(db: psycopg.Connection[Any]) -> tuple[uuid.UUID, int]:
    owner = checkpoints.owner(db, "app", "view")
    assert owner is not None
    return uuid.UUID(owner.query_id), owner.batch_id


def everything(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("SELECT * FROM app.view ORDER BY 1, 2").fetchall()


@pytest.mark.system
def test_rows_replace_those_with_their_key_and_the_last_counts(db: psycopg.Connection[Any]) -> None:
    assert write(db, table(k=["a", "b"], n=[1, 2]), 0) == 2
    assert write(db, table(k=["b", "c", "b"], n=[3, 4, 5]), 1) == 3
    assert everything(db) == [("a", 1), ("b", 5), ("c", 4)]


@pytest.mark.system
def test_a_batch_is_written_once(db: psycopg.Connection[Any]) -> None:
    write(db, table(k=["a"], n=[1]), 0)
    write(db, table(k=["a"], n=[2]), 1)
    assert write(db, table(k=["a"], n=[9]), 1) is None
    assert write(db, table(k=["a"], n=[9]), 0) is None
    assert everything(db) == [("a", 2)]
    assert noted(db) == (FIRST, 1)


@pytest.mark.system
def test_rows_and_checkpoint_come_together_or_not_at_all(db: psycopg.Connection[Any]) -> None:
    write(db, table(k=["a"], n=[1]), 0)
    with pytest.raises(MillstreamError, match="NUL character"):
        write(db, table(k=["b", "c\0"], n=[1, 2]), 1)
    assert everything(db) == [("a", 1)]
    assert noted(db) == (FIRST, 0)
    assert write(db, table(k=["b"], n=[1]), 1) == 1


@pytest.mark.system
def test_an_open_transaction_is_refused(db: psycopg.Connection[Any]) -> None:
    write(db, table(k=["a"], n=[1]), 0)
    with db.transaction(), pytest.raises(ValueError, match="without an open transaction"):
        write(db, table(k=["a"], n=[1]), 1)


@pytest.mark.system
def test_every_value(db: psycopg.Connection[Any]) -> None:
    at = datetime(2013, 1, 1, 5, 0, 0, 123456, UTC)
    text = "".join(chr(i) for i in range(1, 0x300)) + "\\N \\. \n\\.\n '\" 😀"
    rows = pa.table(
        {
            "k": pa.array([1, 2, 3, 4], pa.int64()),
            "f": pa.array([1.1, math.nan, math.inf, -math.inf]),
            "r": pa.array([1.5, None, math.nan, -0.0], pa.float32()),
            "t": pa.array([text, "", None, "\\N"]),
            "z": pa.array(
                [at, None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")
            ),
            "w": pa.array([at.replace(tzinfo=None)] * 4, pa.timestamp("ns")),
            "o": pa.array([at, at, None, None], pa.timestamp("ms", "America/New_York")),
            "d": pa.array([date(1, 1, 1), date(9999, 12, 31), None, date(2013, 2, 28)]),
            "n": pa.array(
                [Decimal("12345678901234567890.12"), Decimal("-0.01"), None, Decimal("0.00")], pa.decimal128(38, 2)
            ),
            "b": pa.array([True, False, None, True]),
            "y": pa.array([b"\0\xff", b"", None, b"\\x"]),
            "u": pa.array([2**64 - 1, 0, None, 1], pa.uint64()),
            "l": pa.array([[{"a": 1.5}], [], None, [{"a": None}]]),
            "m": pa.array([[("x", 1)], [], None, []], pa.map_(pa.string(), pa.int64())),
            "c": pa.array(["x", "y", None, "x"]).dictionary_encode(),
            "v": pa.nulls(4),
        }
    )
    write(db, rows, 0)
    found = db.execute("SELECT * FROM app.view ORDER BY k").fetchall()
    one = dict(zip(rows.column_names, found[0], strict=True))
    assert one["t"] == text and one["z"] == at and one["w"] == at.replace(tzinfo=None)
    assert one["o"] == at.replace(microsecond=123000) and one["n"] == Decimal("12345678901234567890.12")
    assert one["y"] == b"\0\xff" and one["u"] == 2**64 - 1 and one["l"] == [{"a": 1.5}] and one["m"] == {"x": 1}
    assert one["c"] == "x" and one["v"] is None and one["d"] == date(1, 1, 1)
    floats = [row[1] for row in found]
    assert floats[0] == 1.1 and math.isnan(floats[1]) and floats[2:] == [math.inf, -math.inf]
    assert [row[3] for row in found][1:] == ["", None, "\\N"]
    assert all(value is None for name, value in zip(rows.column_names, found[2], strict=True) if name in "tondbyulmcv")


@pytest.mark.system
def test_a_null_is_a_key_like_others(db: psycopg.Connection[Any]) -> None:
    write(db, table(k=pa.array(["a", None]), h=[1, 1], n=[1, 2]), 0, ["k", "h"])
    write(db, table(k=pa.array([None, None]), h=[1, 1], n=[3, 4]), 1, ["k", "h"])
    assert everything(db) == [("a", 1, 1), (None, 1, 4)]


@pytest.mark.system
def test_columns_come_widen_and_otherwise_keep_their_type(db: psycopg.Connection[Any]) -> None:
    write(db, table(k=["a"], n=pa.array([1], pa.int32())), 0)
    write(db, table(k=["b"], n=pa.array([2**40]), extra=["x"]), 1)
    assert everything(db) == [("a", 1, None), ("b", 2**40, "x")]
    write(db, table(k=["a"], n=[5]), 2)  # a column that the view no longer has keeps its values
    assert everything(db) == [("a", 5, None), ("b", 2**40, "x")]
    with pytest.raises(MillstreamError, match="'n' is bigint in the database and text in the view"):
        write(db, table(k=["a"], n=["text"]), 3)
    with pytest.raises(MillstreamError, match=r"exists with the key \['k'\]"):
        write(db, table(k=["a"], n=[5]), 3, ["k", "n"])


@pytest.mark.system
def test_a_value_that_does_not_fit_is_refused(db: psycopg.Connection[Any]) -> None:
    write(db, pa.table({"k": [1], "n": pa.array([1], pa.int64())}), 0)
    target = Target("app", "view", (Column("k", "bigint"), Column("n", "smallint")), ("k",))
    with pytest.raises(MillstreamError, match=r"app\.view cannot hold a row: .*out of range"):
        postgresql.apply(
            db, target, table(k=[1], n=[70000]), claim=Claim("app", "view", "host:/data", str(FIRST)), batch_id=1
        )


@pytest.mark.system
def test_an_empty_batch_is_remembered(db: psycopg.Connection[Any]) -> None:
    empty = table(k=["a"], n=[1]).slice(0, 0)
    assert write(db, empty, 0) == 0
    assert write(db, empty, 0) is None


@pytest.mark.parametrize(
    ("columns", "key", "words"),
    [
        ({"k": [1]}, [], "has no key"),
        ({"k": [1]}, ["x"], "names the column 'x', which the rows lack"),
        ({"k" * 64: [1]}, ["k"], "expected names of 1 to 63 bytes"),
        ({"k": pa.array([timedelta(1)])}, ["k"], "has the type duration"),
    ],
)
def test_targets_are_checked(columns: dict[str, Any], key: list[str], words: str) -> None:
    with pytest.raises(MillstreamError, match=words):
        Target.of("app", "view", pa.table(columns).schema, key)


def test_a_column_is_there_once() -> None:
    with pytest.raises(MillstreamError, match="'k' is there twice"):
        Target("app", "view", (Column("k", "text"), Column("k", "text")), ("k",))


def test_a_type_is_no_way_to_smuggle_in_a_statement() -> None:
    with pytest.raises(MillstreamError, match="expected the name of a PostgreSQL type"):
        targets.type_name("int; DROP TABLE x")
