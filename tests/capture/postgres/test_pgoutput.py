"""Messages of pgoutput as PostgreSQL 18 wrote them (recorded), and ones that it never would."""

from __future__ import annotations

import pytest

from millstream.capture.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    Truncate,
    Update,
    decode,
)
from millstream.settings import MillstreamError

TABLE = 0x4001
COLUMNS = (("id", 23), ("name", 25), ("big", 25))
# CREATE TABLE t (id int PRIMARY KEY, name text, big text); inserts, updates and deletes, then the same with REPLICA IDENTITY FULL
RECORDED = [
    ("420000000001af69f0000303c5768d4bb4000002f5", Begin(0x01AF69F0, 1795256362544, 757)),
    (
        "52000040017075626c69630074006400030169640000000017ffffffff006e616d650000000019ffffffff006269670000000019ffffffff",
        Relation(TABLE, "public", "t", "d", tuple(RelationColumn(n, o, -1, n == "id") for n, o in COLUMNS)),
    ),
    ("49000040014e00037400000001317400000002c3a96e", Insert(TABLE, ["1", "é", None])),
    ("55000040014e000374000000013274000000016375", Update(TABLE, ["2", "c", UNCHANGED], None, False)),
    (
        "55000040014b00037400000001316e6e4e00037400000001337400000002c3a96e",
        Update(TABLE, ["3", "é", None], ["1", None, None], False),
    ),
    ("44000040014b00037400000001326e6e", Delete(TABLE, ["2", None, None], False)),
    ("4d010000000001af69f06d000000000568656c6c6f", None),
    ("43000000000001af69f00000000001af6a20000303c5768d4bb4", Commit(0x01AF69F0, 0x01AF6A20)),
    (
        "52000040017075626c69630074006600030169640000000017ffffffff016e616d650000000019ffffffff016269670000000019ffffffff",
        Relation(TABLE, "public", "t", "f", tuple(RelationColumn(n, o, -1, True) for n, o in COLUMNS)),
    ),
    (
        "55000040014f00037400000001337400000002c3a96e4e000374000000013374000000017a6e",
        Update(TABLE, ["3", "z", None], ["3", "é", None], True),
    ),
    ("44000040014f000374000000013374000000017a6e", Delete(TABLE, ["3", "z", None], True)),
    ("54000000010000004001", Truncate((TABLE,))),
]


@pytest.mark.parametrize(("recorded", "message"), RECORDED, ids=lambda v: type(v).__name__)
def test_recorded_messages(recorded: str, message: object) -> None:
    assert decode(bytes.fromhex(recorded)) == message


def test_a_large_value() -> None:
    value = "x" * 3000
    data = b"I" + TABLE.to_bytes(4, "big") + b"N\0\1t" + len(value).to_bytes(4, "big") + value.encode()
    assert decode(data) == Insert(TABLE, [value])


def test_many_columns() -> None:
    data = b"I" + TABLE.to_bytes(4, "big") + b"N" + (1600).to_bytes(2, "big") + b"n" * 1600
    assert decode(data) == Insert(TABLE, [None] * 1600)


def test_the_empty_schema_is_pg_catalog() -> None:
    message = decode(b"R" + TABLE.to_bytes(4, "big") + b"\0t\0d\0\0")
    assert isinstance(message, Relation) and message.schema == "pg_catalog"


def test_several_tables_truncated_at_once() -> None:
    assert decode(b"T\0\0\0\2\1\0\0\0\7\0\0\0\x08") == Truncate((7, 8))


def test_origin_and_type_say_nothing() -> None:
    assert decode(b"O\0\0\0\0\0\0\0\0name\0") is None
    assert decode(b"Y\0\0\0\1public\0mood\0") is None


@pytest.mark.parametrize("data", [b"Sstream", b"\xff"])
def test_what_was_not_asked_for_is_refused(data: bytes) -> None:
    with pytest.raises(MillstreamError, match="expected a pgoutput message of protocol version 1"):
        decode(data)


def test_binary_values_are_refused() -> None:
    with pytest.raises(MillstreamError, match="expected a text, null or unchanged value"):
        decode(b"I\0\0\0\1N\0\1b\0\0\0\1x")
