"""From the messages of PostgreSQL's log to changes of rows, as capture.source.Receiver takes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg

from millstream.capture.postgres.catalog import CatalogTable, columns_of, primary_key
from millstream.capture.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Unchanged,
    Update,
    Values,
)
from millstream.capture.postgres.rows import Rows
from millstream.capture.postgres.snapshot import Unseen, read_row, snapshot
from millstream.capture.source import Receiver
from millstream.postgresql.connect import Connection

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Captured:
    """A captured table. numbers: its columns' places by name, by the names of today and by those that the state knows."""

    topic: str
    table: CatalogTable
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class _Bound:
    """A table as the changes that follow have it."""

    topic: str
    table: CatalogTable
    rows: Rows
    key: tuple[str, ...]


class Decoder:
    """Gives a receiver the changes of the log, in its order: one transaction at a time.

    waiting: called during long work; False means that the capture is to stop.
    """

    def __init__(self, connection: Connection, unseen: Unseen, receiver: Receiver, waiting: Callable[[], bool]) -> None:
        self.in_transaction = False
        self._tables: Mapping[int, Captured] = {}
        self._relations: dict[int, Relation] = {}
        self._connection = connection
        self._receiver = receiver
        self._unseen = unseen
        self._waiting = waiting
        self._bound: dict[int, _Bound] = {}
        self._told: set[str] = set()

    def capture(self, tables: Mapping[int, Captured]) -> None:
        """Capture the changes of these tables, by their object id, from the next message on."""
        self._tables = tables
        for relation in [r for r in self._relations.values() if r.id in tables and r.id not in self._bound]:
            self._relation(relation)  # the source does not say it again

    def handle(self, message: Message, lsn: int) -> None:
        """Give on what `message` means; `lsn` is its position."""
        kind = type(message)
        if kind is Insert:
            self._insert(message, lsn)  # type: ignore[arg-type]
        elif kind is Update:
            self._update(message, lsn)  # type: ignore[arg-type]
        elif kind is Delete:
            self._delete(message, lsn)  # type: ignore[arg-type]
        elif isinstance(message, Begin):
            self.in_transaction = True
            self._receiver.begin(message.xid, message.commit_ms, message.commit_lsn)
            if self._unseen.add(message.xid):
                with snapshot(self._connection, self._unseen, self._waiting):
                    pass
        elif isinstance(message, Commit):
            self.in_transaction = False
            self._receiver.commit()
        elif isinstance(message, Relation):
            self._relation(message)
        elif isinstance(message, Truncate):
            for relation in message.relations:
                if (bound := self._bound.get(relation)) is not None:
                    self._receiver.truncate(bound.topic, lsn)

    def _relation(self, message: Relation) -> None:
        self._relations[message.id] = message
        if message.id not in self._tables:
            self._bound.pop(message.id, None)  # of a table that the application no longer has
            return
        captured = self._tables[message.id]
        topic, table = captured.topic, captured.table
        columns, types = columns_of(self._connection, message.id, message.columns)
        if message.identity == "d":
            key = tuple(c.name for c in message.columns if c.key)
        else:
            # The names are those of the moment of the change; the catalogue has those of today, and the numbers stay.
            now = primary_key(self._connection, message.id)
            key = tuple(c.name for c in message.columns if captured.numbers.get(c.name) in now)
            key = key if len(key) == len(now) else ()
        if not key or message.identity not in "df":
            self._bound.pop(message.id, None)
            del self._relations[message.id]
            self._receiver.problem(
                topic,
                f"{table.full_name} has had changes without a primary key or with another replica identity, which cannot be"
                f" told apart: ALTER TABLE {table.full_name} ADD PRIMARY KEY (…); or REPLICA IDENTITY DEFAULT;",
            )
            return
        self._bound[message.id] = _Bound(topic, table, Rows([c.name for c in columns], types), key)
        self._receiver.schema(topic, message.schema, message.table, columns, key)

    def _insert(self, message: Insert, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is not None:
            self._receiver.insert(bound.topic, bound.rows.convert(message.new), lsn)

    def _update(self, message: Update, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is None:
            return
        old, new = message.old, message.new
        complete = UNCHANGED not in new or self._complete(bound, new, old)
        before = bound.rows.convert(old) if old is not None else None
        if complete:
            self._receiver.update(bound.topic, before, message.full, bound.rows.convert(new), lsn)
        elif before is not None:
            row = bound.rows.convert([None if isinstance(v, Unchanged) else v for v in new])
            if any(before[name] != row[name] for name in bound.key):
                self._receiver.delete(bound.topic, before, message.full, lsn)

    def _delete(self, message: Delete, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is not None:
            self._receiver.delete(bound.topic, bound.rows.convert(message.old), message.full, lsn)

    def _complete(self, bound: _Bound, new: Values, old: Values | None) -> bool:
        """Fill in the large values that the update left alone: from the old row if the log has it, else from the table.

        The table may hold a later row by then; the change that made it so follows in the log. Returns False when the row is
        gone, or has another key: what ended it follows as well.
        """
        if old is not None:
            for i, value in enumerate(new):
                if isinstance(value, Unchanged) and old[i] is not None:
                    new[i] = old[i]
        missing = [i for i, value in enumerate(new) if isinstance(value, Unchanged)]
        if not missing:
            return True
        if bound.topic not in self._told:
            self._told.add(bound.topic)
            _log.info(
                "%s: updates leave large values out of the log, so they are read from the table; REPLICA IDENTITY FULL has them"
                " in the log",
                bound.table.full_name,
            )
        names = bound.rows.names
        key = {name: str(new[names.index(name)]) for name in bound.key}
        values = self._read(bound, [names[i] for i in missing], key)
        if values is None:
            return False
        for i, value in zip(missing, values, strict=True):
            new[i] = value
        return True

    def _read(self, bound: _Bound, names: list[str], key: dict[str, str]) -> Values | None:
        with snapshot(self._connection, self._unseen, self._waiting):
            try:
                return read_row(self._connection, bound.table, names, key)
            except psycopg.errors.UndefinedColumn:  # dropped since, which the log will tell
                return [None] * len(names)
            except psycopg.errors.UndefinedTable:
                return None
            except psycopg.errors.InsufficientPrivilege as error:
                reason = f"{bound.table.full_name} cannot be read: {error.diag.message_primary}"
                self._receiver.problem(bound.topic, reason)
                return None
