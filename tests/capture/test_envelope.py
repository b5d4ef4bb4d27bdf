"""Rows as Debezium's envelope, and COPY's rows taken apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.capture.envelope import CREATE, DELETE, Column, Envelope, Origin, split_copy_row, unescape
from millstream.capture.types import INT4, NUMERIC, Type

COLUMNS = [Column("id", Type(INT4), False), Column('odd "100%"', Type(25)), Column("price", Type(NUMERIC), True, 10, 2)]
ENVELOPE = Envelope("flights", "ops", "public", 'odd "%d"', COLUMNS, ["id"])
ORIGIN = Origin(xid=757, at_ms=1000, lsn=42, commit_lsn=50, order=3, table_order=2)


def test_a_change() -> None:
    row = ENVELOPE.convert(["1", "é", "1.10"])
    assert ENVELOPE.key(row) == b'{"id":1}'
    after = {"id": 1, 'odd "100%"': "é", "price": "1.10"}
    assert json.loads(ENVELOPE.changed(CREATE, None, row, ORIGIN, 2000)) == {
        "before": None,
        "after": after,
        "source": {
            "connector": "postgresql",
            "name": "flights",
            "db": "ops",
            "schema": "public",
            "table": 'odd "%d"',
            "snapshot": "false",
            "ts_ms": 1000,
            "sequence": '["50","42"]',
            "txId": 757,
            "lsn": 42,
        },
        "op": "c",
        "ts_ms": 2000,
        "transaction": {"id": "757:50", "total_order": 3, "data_collection_order": 2},
    }


def test_a_deletion_knows_the_key_only() -> None:
    before = ENVELOPE.key_only(ENVELOPE.convert(["1", None, None]))
    message = json.loads(ENVELOPE.changed(DELETE, before, None, ORIGIN, 2000))
    assert (message["before"], message["after"], message["op"]) == ({"id": 1}, None, "d")


def test_a_copied_row() -> None:
    message = json.loads(ENVELOPE.copied(ENVELOPE.convert(["1", None, None]), 1000, 42, 2000))
    assert message["op"] == "r" and message["source"]["snapshot"] == "true" and message["source"]["lsn"] == 42
    assert message["after"] == {"id": 1, 'odd "100%"': None, "price": None}


def test_a_truncated_row_is_a_deletion() -> None:
    message = json.loads(ENVELOPE.removed(b'{"id":1}', ORIGIN, 2000))
    assert (message["before"], message["after"], message["op"]) == ({"id": 1}, None, "d")


def test_columns_describe_themselves() -> None:
    assert COLUMNS[0].describe() == {"name": "id", "kind": "long", "nullable": False}
    assert COLUMNS[2].describe() == {"name": "price", "kind": "decimal", "nullable": True, "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("1\ta b\t", ["1", "a b", ""]),
        ("\\N\tx\t\\N", [None, "x", None]),
        ("\\\\N\t\\\\\\\\\t\\t\\n", ["\\N", "\\\\", "\t\n"]),
        ("a\\\\nb\\\\", ["a\\nb\\"]),
        ("", [""]),
    ],
)
def test_copy_rows(line: str, values: list[str | None]) -> None:
    assert split_copy_row(line) == values


@given(
    st.lists(
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), min_size=1
    )
)
def test_copy_rows_of_any_text(values: list[str | None]) -> None:
    escapes = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    line = "\t".join("\\N" if v is None else "".join(escapes.get(c, c) for c in v) for v in values)
    assert split_copy_row(line) == values


def test_unescape_at_the_end() -> None:
    assert unescape("\\\\") == "\\"
    assert unescape("x\\\\\\\\") == "x\\\\"
