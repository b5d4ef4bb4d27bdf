"""From the messages of PostgreSQL's log to changes of rows, as capture.source.Receiver takes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from millstream.capture.postgres import unchanged
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
from millstream.capture.postgres.snapshot import Unseen, snapshot
from millstream.capture.postgres.unchanged import Wanted
from millstream.capture.source import Receiver, TableProblem
from millstream.postgresql.connect import Connection

AHEAD = 4000  # messages that wait at most until what the first of them lacks is read
AHEAD_BYTES = 4 << 20

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
    """Gives a receiver the changes of the log, in its order: one transaction at a time. Call `settle` when no message is there.

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
        self._unchanged = unchanged.Unchanged(connection, unseen, waiting)
        self._ahead: list[tuple[Message, int]] = []  # an update whose values are to be read, and all that came after it
        self._size = 0
        self._values: dict[int, Values | TableProblem | None] = {}  # that were read, by the update's id()

    def capture(self, tables: Mapping[int, Captured]) -> None:
        """Capture the changes of these tables, by their object id, from the next message on."""
        self._tables = tables
        for relation in [r for r in self._relations.values() if r.id in tables and r.id not in self._bound]:
            self._relation(relation)  # the source does not say it again

    def handle(self, message: Message, lsn: int) -> None:
        """Give on what `message` means, now or in `settle`; `lsn` is its position."""
        if self._ahead:
            self._later(message, lsn)
            return
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
        complete = True
        if UNCHANGED in new:
            if old is not None:
                for i, value in enumerate(new):
                    if isinstance(value, Unchanged) and old[i] is not None:
                        new[i] = old[i]
            if _wanted(bound, new) is not None:
                if id(message) not in self._values:
                    self._told_of(bound)
                    self._ahead.append((message, lsn))
                    return
                complete = self._fill(bound, new, self._values.pop(id(message)))
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

    # --- large values that updates leave alone ---

    def _later(self, message: Message, lsn: int) -> None:
        """Have a message wait behind an update whose values are still to be read, and read them when enough have come."""
        kind = type(message)
        if kind is Begin:
            self._unseen.add(message.xid)  # type: ignore[union-attr]  # what is read is to be no older than this transaction
        if kind is Relation or kind is Truncate:
            self.settle()
            self.handle(message, lsn)
            return
        self._ahead.append((message, lsn))
        if isinstance(message, Insert | Update):
            self._size += sum([len(v) for v in message.new if isinstance(v, str)])
        if len(self._ahead) >= AHEAD or self._size >= AHEAD_BYTES:
            self.settle()

    def settle(self) -> None:
        """Give on everything that waits."""
        while self._ahead:
            waiting, self._ahead, self._size = self._ahead, [], 0
            self._values = self._unchanged.read(self._wanted_of(waiting))
            for at, (message, lsn) in enumerate(waiting):
                self.handle(message, lsn)
                if self._ahead:  # an update of which nothing was read yet: it comes first the next time
                    self._ahead += waiting[at + 1 :]
                    break
            self._values = {}

    def _wanted_of(self, messages: Sequence[tuple[Message, int]]) -> Iterator[tuple[Update, Wanted]]:
        left = self._unchanged.rows
        for message, _ in messages:
            bound = self._bound.get(message.relation) if left and isinstance(message, Update) else None
            if bound is None or not isinstance(message, Update) or UNCHANGED not in message.new:
                continue
            if (wanted := _wanted(bound, message.new, message.old)) is not None:
                left -= 1
                yield message, wanted

    def _fill(self, bound: _Bound, new: Values, values: Values | TableProblem | None) -> bool:
        """Put the values in. Returns False when the row is gone, or has another key: what ended it follows in the log."""
        if isinstance(values, TableProblem):
            self._receiver.problem(bound.topic, str(values))
        if not isinstance(values, list):
            return False
        missing = iter(values)
        for i, value in enumerate(new):
            if isinstance(value, Unchanged):
                new[i] = next(missing)
        return True

    def _told_of(self, bound: _Bound) -> None:
        if bound.topic not in self._told:
            self._told.add(bound.topic)
            _log.info(
                "%s: updates leave large values out of the log, so they are read from the table; REPLICA IDENTITY FULL has them"
                " in the log",
                bound.table.full_name,
            )


def _wanted(bound: _Bound, new: Values, old: Values | None = None) -> Wanted | None:
    """Return what is missing of a row, None when nothing is."""
    names = bound.rows.names
    missing = tuple(names[i] for i, v in enumerate(new) if isinstance(v, Unchanged) and (old is None or old[i] is None))
    if not missing:
        return None
    return Wanted(bound.table, tuple((name, str(new[names.index(name)])) for name in bound.key), missing)
