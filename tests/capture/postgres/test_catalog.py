"""What the catalogue says of tables."""

from __future__ import annotations

import pytest

from millstream.capture.postgres.catalog import column, columns_of, describe, primary_key
from millstream.capture.postgres.pgoutput import RelationColumn
from millstream.capture.postgres.types import INT4, NUMERIC, Type
from millstream.capture.source import TableProblem
from tests.capture.conftest import Source


@pytest.mark.parametrize(
    ("modifier", "precision", "scale"),
    [(-1, None, None), ((10 << 16 | 2) + 4, 10, 2), ((3 << 16 | (-2 & 0x7FF)) + 4, 3, -2)],
)
def test_what_a_numeric_declares(modifier: int, precision: int | None, scale: int | None) -> None:
    found = column("price", Type(NUMERIC), modifier, nullable=True)
    assert (found.kind, found.precision, found.scale) == ("decimal", precision, scale)


@pytest.mark.system
def test_a_table_as_it_is(source: Source) -> None:
    source.sql.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    source.sql.execute(
        "CREATE TABLE t (a positive, gone int, b text, c numeric(10,2) NOT NULL, d int[] DEFAULT '{}', PRIMARY KEY (b, a))"
    )
    source.sql.execute("ALTER TABLE t DROP COLUMN gone")
    found = describe(source.sql, "public", "t")
    assert [(c.name, c.kind, c.nullable) for c in found.columns] == [
        ("a", "long", False),
        ("b", "string", False),
        ("c", "decimal", False),
        ("d", "json", True),
    ]
    assert (found.key, found.order) == (("a", "b"), ("b", "a"))
    assert found.signature == {"a": "1:positive", "b": "3:text", "c": "4:numeric(10,2)", "d": "5:integer[]"}
    assert found.defaulted == {"d"} and found.full_name == "public.t"


@pytest.mark.system
def test_a_key_by_the_places_of_its_columns(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (a int, b int, PRIMARY KEY (b, a))")
    found = describe(source.sql, "public", "t")
    source.sql.execute("ALTER TABLE t RENAME COLUMN a TO x")
    assert primary_key(source.sql, found.id) == {1, 2}
    source.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert primary_key(source.sql, found.id) == frozenset()


@pytest.mark.system
def test_columns_of_the_past(source: Source) -> None:
    source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    found = describe(source.sql, "public", "t")
    past = [RelationColumn("id", INT4, -1, True), RelationColumn("gone", 25, -1, False)]
    columns, types = columns_of(source.sql, found.id, past)
    assert [(c.name, c.kind, c.nullable) for c in columns] == [("id", "long", False), ("gone", "string", True)]
    assert types == (Type(INT4), Type(25))


@pytest.mark.system
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT 1", "has no table public.t"),
        ("CREATE VIEW t AS SELECT 1 AS id", "is no table"),
        ("CREATE TABLE t (id int)", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "ADD PRIMARY KEY"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "SET LOGGED;"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT;"),
        ("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY)", "There is s.t."),
    ],
)
def test_what_is_wrong_with_a_table(source: Source, statement: str, words: str) -> None:
    source.sql.execute(statement)  # type: ignore[arg-type]
    with pytest.raises(TableProblem) as caught:
        describe(source.sql, "public", "t")
    assert words in str(caught.value)
