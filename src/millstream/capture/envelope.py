"""Rows as messages: Debezium's envelope (JSON without schema) and the key, from PostgreSQL's text values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from millstream.capture.pgoutput import Values
from millstream.capture.types import Type

CREATE, READ, UPDATE, DELETE = b"c", b"r", b"u", b"d"
_NONE = b"null"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Column:
    """A column of a captured table. precision, scale: of a numeric that declares them."""

    name: str
    type: Type
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None

    def describe(self) -> dict[str, object]:
        """Return the column as the topic `_millstream.schemas` has it."""
        facts: dict[str, object] = {"name": self.name, "kind": self.type.kind, "nullable": self.nullable}
        if self.precision is not None:
            facts |= {"precision": self.precision, "scale": self.scale}
        return facts


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a change comes from: the transaction's id and commit time (epoch ms), and the position in the log.

    commit_lsn: the position of the transaction's commit; transactions are ordered by it, over all topics.
    order, table_order: the change's number in its transaction, and among those of its table, from 1.
    """

    xid: int
    at_ms: int
    lsn: int
    commit_lsn: int = 0
    order: int = 1
    table_order: int = 1


class Envelope:
    """Makes the messages of one table with one set of columns. Rows are PostgreSQL's text values in the order of `columns`."""

    def __init__(
        self, app: str, database: str, schema: str, table: str, columns: Sequence[Column], key: Sequence[str]
    ) -> None:
        self.columns = tuple(columns)
        self.names = tuple(c.name for c in columns)
        self.key_names = tuple(key)
        self.key_at = tuple(self.names.index(name) for name in key)
        self._converters = tuple((i, f) for i, c in enumerate(columns) if (f := c.type.converter()) is not None)
        static = {"connector": "postgresql", "name": app, "db": database, "schema": schema, "table": table}
        source = _encode(static)[:-1]
        # before, after, commit ms, commit lsn, lsn, transaction, lsn, op, ms, transaction, commit lsn, its order, the table's
        self._changed = (
            b'{"before":%b,"after":%b,"source":'
            + source.replace(b"%", b"%%")
            + b',"snapshot":"false","ts_ms":%d,"sequence":"[\\"%d\\",\\"%d\\"]","txId":%d,"lsn":%d},"op":"%b","ts_ms":%d'
            + b',"transaction":{"id":"%d:%d","total_order":%d,"data_collection_order":%d}}'
        )
        self._copied = (
            b'{"before":null,"after":%b,"source":'
            + source.replace(b"%", b"%%")
            + b',"snapshot":"true","ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}'
        )

    def convert(self, row: Values) -> dict[str, object]:
        """Return the row as JSON-able values by name. `row` is changed in place."""
        values: list[object] = row  # type: ignore[assignment]
        for i, converter in self._converters:
            if (value := values[i]) is not None:
                values[i] = converter(value)  # type: ignore[arg-type]
        return dict(zip(self.names, values, strict=True))

    def key(self, row: dict[str, object]) -> bytes:
        """Return the message key of a converted row: a JSON object of the primary key's columns."""
        return _encode({name: row[name] for name in self.key_names})

    def key_only(self, row: dict[str, object]) -> dict[str, object]:
        """Return the converted row with its key's columns only."""
        return {name: row[name] for name in self.key_names}

    def copied(self, row: dict[str, object], at_ms: int, lsn: int, now_ms: int) -> bytes:
        """Return the message of a row that was read from the table (op r)."""
        return self._copied % (_encode(row), at_ms, lsn, now_ms)

    def changed(
        self,
        op: bytes,
        before: dict[str, object] | None,
        after: dict[str, object] | None,
        origin: Origin,
        now_ms: int,
    ) -> bytes:
        """Return the message of a change (op c, u or d)."""
        return self._message(
            _NONE if before is None else _encode(before), _NONE if after is None else _encode(after), op, origin, now_ms
        )

    def removed(self, key: bytes, origin: Origin, now_ms: int) -> bytes:
        """Return the message of a row of which only the message key is known (op d, by a truncate)."""
        return self._message(key, _NONE, DELETE, origin, now_ms)

    def _message(self, before: bytes, after: bytes, op: bytes, origin: Origin, now_ms: int) -> bytes:
        xid, commit, lsn = origin.xid, origin.commit_lsn, origin.lsn
        order = (xid, commit, origin.order, origin.table_order)
        return self._changed % (before, after, origin.at_ms, commit, lsn, xid, lsn, op, now_ms, *order)


def split_copy_row(line: str) -> Values:
    """Return the values of one row in COPY's text format, without its line end."""
    values: Values = line.split("\t")  # type: ignore[assignment]
    if "\\" in line:
        return [None if v == "\\N" else unescape(v) if "\\" in v else v for v in line.split("\t")]
    return values


def unescape(value: str) -> str:
    """Undo COPY's backslash sequences, those that the server writes: \\\\ \\b \\f \\n \\r \\t \\v."""
    parts = value.split("\\")
    result = [parts[0]]
    i = 1
    while i < len(parts):
        part = parts[i]
        if part:
            result.append(_ESCAPES.get(part[0], part[0]) + part[1:])
            i += 1
        else:  # two backslashes: one, and the next part stands as it is
            result.append("\\" + (parts[i + 1] if i + 1 < len(parts) else ""))
            i += 2
    return "".join(result)


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
