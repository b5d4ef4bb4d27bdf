"""Rows as messages: Debezium's envelope (JSON without schema) and the key. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

CREATE, READ, UPDATE, DELETE = b"c", b"r", b"u", b"d"
VERSION_DIGITS = 12
_NONE = b"null"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Column:
    """A column of a captured table.

    kind: what its values are, as millstream.event names it. precision, scale: of a decimal that declares them.
    """

    name: str
    kind: str
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None

    def describe(self) -> dict[str, object]:
        """Return the column as the topic `_millstream.schemas` has it."""
        facts: dict[str, object] = {"name": self.name, "kind": self.kind, "nullable": self.nullable}
        if self.precision is not None:
            facts |= {"precision": self.precision, "scale": self.scale}
        return facts


def describe(topic: str, columns: Sequence[Column], key: Sequence[str]) -> tuple[str, bytes]:
    """Return the version of a topic's columns and key, and their description for the topic `_millstream.schemas`.

    The version is made of the description alone, so that what comes again after a crash has the same.
    """
    facts: dict[str, object] = {"topic": topic, "columns": [c.describe() for c in columns], "key": list(key)}
    version = hashlib.sha256(_encode(facts)).hexdigest()[:VERSION_DIGITS]
    return version, _encode(facts | {"version": version})


class Envelope:
    """Makes the messages of one table with one key and one set of columns.

    connector: the kind of source, as Debezium names it. version: names the columns, see `describe`.
    """

    def __init__(
        self, connector: str, app: str, database: str, schema: str, table: str, key: Sequence[str], version: str = ""
    ) -> None:
        self.key_names = tuple(key)
        static = {"connector": connector, "name": app, "db": database, "schema": schema, "table": table}
        static["schema_version"] = version
        source = _encode(static)[:-1]
        # Filled twice, by a transaction (commit ms, commit lsn, id, id, commit lsn) and by a change (before, after, lsn, lsn, op,
        # ms, order, the table's order).
        self._changed = (
            b'{"before":%%b,"after":%%b,"source":'
            + source.replace(b"%", b"%%%%")
            + b',"snapshot":"false","ts_ms":%d,"sequence":"[\\"%d\\",\\"%%d\\"]","txId":%d,"lsn":%%d},"op":"%%b","ts_ms":%%d'
            + b',"transaction":{"id":"%d:%d","total_order":%%d,"data_collection_order":%%d}}'
        )
        self._copied = (
            b'{"before":null,"after":%b,"source":'
            + source.replace(b"%", b"%%")
            + b',"snapshot":"true","ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}'
        )

    def key(self, row: dict[str, object]) -> bytes:
        """Return the message key of a row: a JSON object of the primary key's columns."""
        return _encode({name: row[name] for name in self.key_names})

    def key_only(self, row: dict[str, object]) -> dict[str, object]:
        """Return the row with its key's columns only."""
        return {name: row[name] for name in self.key_names}

    def copied(self, row: dict[str, object], at_ms: int, lsn: int, now_ms: int) -> bytes:
        """Return the message of a row that was read from the table (op r)."""
        return self._copied % (_encode(row), at_ms, lsn, now_ms)

    def changes(self, transaction: int, at_ms: int, commit: int, count: int = 0) -> Changed:
        """Return what makes the messages of a transaction's changes: its id, its commit's epoch ms and position.

        count: how many changes of the table came before in the transaction.
        """
        return Changed(self._changed % (at_ms, commit, transaction, transaction, commit), count)


class Changed:
    """Makes the messages of one transaction's changes of one table."""

    __slots__ = ("_template", "count")

    def __init__(self, template: bytes, count: int) -> None:
        self._template = template
        self.count = count

    def change(self, op: bytes, before: object, after: object, position: int, order: int, now_ms: int) -> bytes:
        """Return the message of a change (op c, u or d). order: its number in the transaction, from 1. Call it once for each."""
        self.count += 1
        old = _NONE if before is None else _encode(before)
        new = _NONE if after is None else _encode(after)
        return self._template % (old, new, position, position, op, now_ms, order, self.count)

    def removed(self, key: bytes, position: int, order: int, now_ms: int) -> bytes:
        """Return the message of a row of which only the message key is known (op d, by a truncate)."""
        return self.change(DELETE, msgspec.Raw(key), None, position, order, now_ms)
