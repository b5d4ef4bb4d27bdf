"""What each message of the source's log becomes in the topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import psycopg

from millstream.capture import failpoints
from millstream.capture.catalog import SourceTable, columns_of, primary_key
from millstream.capture.envelope import CREATE, DELETE, UPDATE, Column, Envelope, Origin
from millstream.capture.failpoints import reach
from millstream.capture.pgoutput import (
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
from millstream.capture.sink import Sink
from millstream.capture.snapshot import Unseen, read_row, snapshot
from millstream.postgresql.connect import Connection
from millstream.settings import MillstreamError

_log = logging.getLogger(__name__)


class Schemas(Protocol):
    """Takes a table's columns when they may have changed."""

    def __call__(self, topic: str, columns: tuple[Column, ...], key: tuple[str, ...]) -> None: ...


@dataclass(frozen=True)
class Captured:
    """A captured table. numbers: its columns' places by name, by the names of today and by those that the state knows."""

    topic: str
    table: SourceTable
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class _Bound:
    topic: str
    table: SourceTable
    envelope: Envelope


class Changes:
    """Sends the changes of the source's log to the topics, in their order. One transaction at a time, as the log has them.

    stop: takes the topic of a table whose changes cannot be captured, and why; its changes are left out from there on.
    waiting: called during long work; False means that the capture is to stop.
    """

    def __init__(
        self,
        app: str,
        connection: Connection,
        sink: Sink,
        unseen: Unseen,
        schemas: Schemas,
        stop: Callable[[str, str], None],
        waiting: Callable[[], bool],
    ) -> None:
        self._tables: Mapping[int, Captured] = {}
        self._relations: dict[int, Relation] = {}
        self.count = 0
        self.in_transaction = False
        self._app = app
        self._database = connection.info.dbname
        self._connection = connection
        self._sink = sink
        self._unseen = unseen
        self._schemas = schemas
        self._stop = stop
        self._waiting = waiting
        self._bound: dict[int, _Bound] = {}
        self._begin = Begin(0, 0, 0)
        self._order = 0  # changes of the transaction until now, in all and by topic
        self._table_orders: dict[str, int] = {}
        self._told: set[str] = set()

    def capture(self, tables: Mapping[int, Captured]) -> None:
        """Capture the changes of these tables, by their object id, from the next message on."""
        self._tables = tables
        for relation in [r for r in self._relations.values() if r.id in tables and r.id not in self._bound]:
            self._relation(relation)  # the source does not say it again

    def handle(self, message: Message, lsn: int) -> None:
        """Send what `message` means; `lsn` is its position."""
        kind = type(message)
        if kind is Insert:
            self._insert(message, lsn)  # type: ignore[arg-type]
        elif kind is Update:
            self._update(message, lsn)  # type: ignore[arg-type]
        elif kind is Delete:
            self._delete(message, lsn)  # type: ignore[arg-type]
        elif isinstance(message, Begin):
            self._begin, self.in_transaction = message, True
            self._order = 0
            self._table_orders = {}
            if self._unseen.add(message.xid):
                with snapshot(self._connection, self._unseen, self._waiting):
                    pass
        elif isinstance(message, Commit):
            self.in_transaction = False
        elif isinstance(message, Relation):
            self._relation(message)
        elif isinstance(message, Truncate):
            for relation in message.relations:
                if (bound := self._bound.get(relation)) is not None:
                    self._truncate(bound, lsn)

    def _relation(self, message: Relation) -> None:
        self._relations[message.id] = message
        if message.id not in self._tables:
            self._bound.pop(message.id, None)  # of a table that the application no longer has
            return
        captured = self._tables[message.id]
        topic, table = captured.topic, captured.table
        columns = columns_of(self._connection, message.id, message.columns)
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
            self._stop(
                topic,
                f"{table.full_name} has had changes without a primary key or with another replica identity, which cannot be"
                f" told apart: ALTER TABLE {table.full_name} ADD PRIMARY KEY (…); or REPLICA IDENTITY DEFAULT;",
            )
            return
        envelope = Envelope(self._app, self._database, message.schema, message.table, columns, key)
        self._bound[message.id] = _Bound(topic, table, envelope)
        self._schemas(topic, columns, key)

    def _insert(self, message: Insert, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is None:
            return
        envelope = bound.envelope
        row = envelope.convert(message.new)
        self._send(bound, envelope.key(row), CREATE, None, row, lsn)

    def _update(self, message: Update, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is None:
            return
        envelope = bound.envelope
        old, new = message.old, message.new
        complete = UNCHANGED not in new or self._complete(bound, new, old)
        before = envelope.convert(old) if old is not None else None
        if before is not None and not message.full:
            before = envelope.key_only(before)
        row = envelope.convert(new) if complete else None
        if before is not None and (row is None or envelope.key(before) != envelope.key(row)):
            old_key = envelope.key(before)
            if row is not None or old_key != self._key_of(bound, new):
                self._send(bound, old_key, DELETE, before, None, lsn)
                self._sink.send(bound.topic, old_key, None)
                reach(failpoints.KEY_CHANGING)
                if row is not None:
                    self._send(bound, envelope.key(row), CREATE, None, row, lsn)
        elif row is not None:
            self._send(bound, envelope.key(row), UPDATE, before, row, lsn)

    def _delete(self, message: Delete, lsn: int) -> None:
        if (bound := self._bound.get(message.relation)) is None:
            return
        envelope = bound.envelope
        before = envelope.convert(message.old)
        key = envelope.key(before)
        self._send(bound, key, DELETE, before if message.full else envelope.key_only(before), None, lsn)
        self._sink.send(bound.topic, key, None)

    def _send(
        self,
        bound: _Bound,
        key: bytes,
        op: bytes,
        before: dict[str, object] | None,
        after: dict[str, object] | None,
        lsn: int,
    ) -> None:
        origin = self._origin(bound.topic, lsn)
        self._sink.send(bound.topic, key, bound.envelope.changed(op, before, after, origin, int(time.time() * 1000)))
        self.count += 1
        reach(failpoints.CHANGE_SENT)

    def _origin(self, topic: str, lsn: int) -> Origin:
        """Number the next change of the transaction. The source gives them in the same order again."""
        begin = self._begin
        self._order += 1
        self._table_orders[topic] = mine = self._table_orders.get(topic, 0) + 1
        return Origin(begin.xid, begin.commit_ms, lsn, begin.commit_lsn, self._order, mine)

    def _truncate(self, bound: _Bound, lsn: int) -> None:
        """Delete every key that the topic holds: a compacted topic takes no message without a key, so none of op t."""
        if not self._sink.flush(self._waiting):
            raise MillstreamError("stopped in the middle of a truncate")
        ends = self._sink.ends(bound.topic)
        for key in self._sink.live_keys(bound.topic, ends, self._waiting):
            self._sink.send(
                bound.topic, key, bound.envelope.removed(key, self._origin(bound.topic, lsn), int(time.time() * 1000))
            )
            self._sink.send(bound.topic, key, None)
            self.count += 1
            reach(failpoints.TRUNCATING)

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
        envelope = bound.envelope
        if bound.topic not in self._told:
            self._told.add(bound.topic)
            _log.info(
                "%s: updates leave large values out of the log, so they are read from the table; REPLICA IDENTITY FULL has them"
                " in the log",
                bound.table.full_name,
            )
        key = {envelope.names[i]: str(new[i]) for i in envelope.key_at}
        names = [envelope.names[i] for i in missing]
        with snapshot(self._connection, self._unseen, self._waiting):
            try:
                values = read_row(self._connection, bound.table, names, key)
            except psycopg.errors.UndefinedColumn:  # dropped since, which the log will tell
                values = [None] * len(names)
            except psycopg.errors.UndefinedTable:
                values = None
            except psycopg.errors.InsufficientPrivilege as error:
                self._stop(bound.topic, f"{bound.table.full_name} cannot be read: {error.diag.message_primary}")
                values = None
        if values is None:
            return False
        for i, value in zip(missing, values, strict=True):
            new[i] = value
        return True

    def _key_of(self, bound: _Bound, row: Values) -> bytes:
        """The key of a row some of whose other values are missing."""
        known: Values = [None if isinstance(v, Unchanged) else v for v in row]
        return bound.envelope.key(bound.envelope.convert(known))
