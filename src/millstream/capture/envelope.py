"""Rows as messages: Debezium's envelope (JSON without schema) and the key. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class Origin(NamedTuple):
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

    def key(self, row: dict[str, object]) -> bytes:
        """Return the message key of a row: a JSON object of the primary key's columns."""
        return _encode({name: row[name] for name in self.key_names})

    def key_only(self, row: dict[str, object]) -> dict[str, object]:
        """Return the row with its key's columns only."""
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
        xid, at_ms, lsn, commit, order, table_order = origin
        return self._changed % (
            before,
            after,
            at_ms,
            commit,
            lsn,
            xid,
            lsn,
            op,
            now_ms,
            xid,
            commit,
            order,
            table_order,
        )
