"""Rows as Debezium's envelope."""

from __future__ import annotations

import json

from millstream.capture.envelope import CREATE, DELETE, Column, Envelope, describe

COLUMNS = [Column("id", "long", False), Column('odd "100%"', "string"), Column("price", "decimal", True, 10, 2)]
ENVELOPE = Envelope("postgresql", "flights", "ops", "public", 'odd "%d"', ["id"], "a1")


def test_a_change() -> None:
    changed = ENVELOPE.changes(757, 1000, 50, 1)
    row = {"id": 1, 'odd "100%"': "é", "price": "1.10"}
    assert ENVELOPE.key(row) == b'{"id":1}'
    after = {"id": 1, 'odd "100%"': "é", "price": "1.10"}
    assert json.loads(changed.change(CREATE, None, row, 42, 3, 2000)) == {
        "before": None,
        "after": after,
        "source": {
            "connector": "postgresql",
            "name": "flights",
            "db": "ops",
            "schema": "public",
            "table": 'odd "%d"',
            "schema_version": "a1",
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
    before = ENVELOPE.key_only({"id": 1, 'odd "100%"': None, "price": None})
    message = json.loads(ENVELOPE.changes(757, 1000, 50).change(DELETE, before, None, 42, 3, 2000))
    assert (message["before"], message["after"], message["op"]) == ({"id": 1}, None, "d")


def test_a_copied_row() -> None:
    message = json.loads(ENVELOPE.copied({"id": 1, 'odd "100%"': None, "price": None}, 1000, 42, 2000))
    assert message["op"] == "r" and message["source"]["snapshot"] == "true" and message["source"]["lsn"] == 42
    assert message["after"] == {"id": 1, 'odd "100%"': None, "price": None}


def test_a_truncated_row_is_a_deletion() -> None:
    message = json.loads(ENVELOPE.changes(757, 1000, 50).removed(b'{"id":1}', 42, 3, 2000))
    assert (message["before"], message["after"], message["op"]) == ({"id": 1}, None, "d")


def test_columns_describe_themselves() -> None:
    assert COLUMNS[0].describe() == {"name": "id", "kind": "long", "nullable": False}
    assert COLUMNS[2].describe() == {"name": "price", "kind": "decimal", "nullable": True, "precision": 10, "scale": 2}


def test_versions_of_columns_are_told_apart_and_stay() -> None:
    version, value = describe("t", COLUMNS, ["id"])
    assert (version, value) == describe("t", list(COLUMNS), ("id",)) and len(version) == 12
    others = [describe("t", COLUMNS[:2], ["id"]), describe("t", COLUMNS, ["price"]), describe("u", COLUMNS, ["id"])]
    assert len({version, *(other for other, _ in others)}) == 4
    found = json.loads(value)
    assert found.pop("version") == version
    assert found == {"topic": "t", "columns": [c.describe() for c in COLUMNS], "key": ["id"]}
