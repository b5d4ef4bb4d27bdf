"""Reading a table in chunks by primary key, each at a moment that is known in relation to the log.

No snapshot is held open, nothing is locked. Two rules make this right. A chunk is read at a snapshot that sees every transaction
whose changes were sent before it, so whatever it misses is still to come in the log. And every transaction that it sees was
committed before its position, so that all of them were received when the log has been read up to there (see snapshotter.py).

That a transaction was received from the log does not mean that a new snapshot sees it: PostgreSQL writes the commit to the log
first and makes it visible after that (much later with a slow synchronous standby). So the snapshot is checked, and taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import TupleRow

from millstream.capture.postgres.catalog import CatalogTable
from millstream.capture.postgres.pgoutput import Values
from millstream.capture.postgres.rows import split_copy_row
from millstream.postgresql.connect import Connection
from millstream.settings import MillstreamError

VISIBLE_S = (
    300.0  # how long a received transaction may stay invisible (a synchronous standby that is away) before we give up
)
MAX_ROWS = 10_000  # of a chunk: the log waits while one is read
MAX_BYTES = 4 << 20  # of a chunk, aimed at by the size of the rows before
FIRST_ROWS = 500  # of the first chunk, when the rows' size is unknown
_RETRY_S = 0.005


@dataclass(frozen=True)
class Snapshot:
    """Which transactions a query sees (pg_snapshot), by their 32-bit ids as the log has them."""

    next_id: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Read PostgreSQL's text form, xmin:xmax:xip,xip,…"""
        _, upper, running = text.split(":")
        return cls(int(upper) & 0xFFFFFFFF, frozenset(int(x) & 0xFFFFFFFF for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether the changes of the (committed) transaction `xid` are visible."""
        age = (self.next_id - xid) & 0xFFFFFFFF
        return 0 < age < 0x80000000 and xid not in self.running


class Unseen:
    """The transactions that were received from the log and that no snapshot of ours is known to have seen yet."""

    LIMIT = 10_000  # ask the source when this many have come together, so that an endless stream does not fill memory

    def __init__(self) -> None:
        self._ids: list[int] = []

    def add(self, xid: int) -> bool:
        """Note a transaction; returns whether there are so many that the source should be asked."""
        self._ids.append(xid)
        return len(self._ids) >= self.LIMIT

    def clear_by(self, snapshot: Snapshot) -> bool:
        """Forget those that `snapshot` sees; returns whether it sees all. What was seen once stays visible."""
        self._ids = [xid for xid in self._ids if not snapshot.sees(xid)]
        return not self._ids


@dataclass(frozen=True)
class Moment:
    """When a snapshot was taken. lsn: where the log stood, with what is not written out yet; at_ms: the source's clock."""

    lsn: int
    at_ms: int


@contextmanager
def snapshot(
    connection: Connection, unseen: Unseen, waiting: Callable[[], object], lock_timeout_s: float = 0
) -> Iterator[Moment]:
    """A read-only transaction at a snapshot that sees all that was received. `waiting` is called while there is none yet.

    lock_timeout_s: how long a locked table is waited for, 0 for as long as it takes.
    """
    deadline = time.monotonic() + VISIBLE_S
    while True:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if lock_timeout_s:
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(int(lock_timeout_s * 1000)))
        try:
            row: TupleRow | None = connection.execute(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
                " (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
            ).fetchone()
            assert row is not None
            if unseen.clear_by(Snapshot.parse(row[0])):
                yield Moment(int(row[1]), int(row[2]))
                return
        finally:
            connection.execute("ROLLBACK")
        if time.monotonic() > deadline:
            raise MillstreamError(
                f"the source committed a transaction {VISIBLE_S:.0f} s ago that is not visible yet: a synchronous standby does"
                " not answer. See synchronous_standby_names and pg_stat_replication."
            )
        waiting()
        time.sleep(_RETRY_S)


class ChunkReader:
    """Reads one table from its first key to its last, chunk by chunk. `after` is the last key read, in text."""

    def __init__(self, table: CatalogTable, after: Sequence[str] | None) -> None:
        self.table = table
        self.after = list(after) if after else None
        self.finished = False
        self._rows = FIRST_ROWS

    def read(self, connection: Connection) -> Iterator[Values]:
        """Yield the rows of the next chunk, in the columns' order; call it inside `snapshot`. Sets `after` and `finished`."""
        limit, size, count = self._rows, 0, 0
        names = [c.name for c in self.table.columns]
        at = [names.index(name) for name in self.table.order]
        last: Values | None = None
        with connection.cursor().copy(self._query(limit)) as copy:
            for data in copy:
                line = str(data, "utf8")
                size += len(line)
                count += 1
                last = split_copy_row(line[:-1])
                key = [last[i] for i in at]
                yield last  # the receiver may change it
        if last is not None:
            self.after = [str(value) for value in key]
        self.finished = count < limit
        if count:
            self._rows = max(1, min(MAX_ROWS, MAX_BYTES * count // max(size, 1), 4 * count))

    def _query(self, limit: int) -> sql.Composed:
        table = self.table
        order = sql.SQL(", ").join(map(sql.Identifier, table.order))
        where: sql.Composable = sql.SQL("")
        if self.after is not None:
            values = [
                sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(table.declared[name]))  # type: ignore[arg-type]  # format_type's
                for name, text in zip(table.order, self.after, strict=True)
            ]
            where = sql.SQL(" WHERE ({}) > ({})").format(order, sql.SQL(", ").join(values))
        return sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {} LIMIT {}) TO STDOUT").format(
            sql.SQL(", ").join(sql.Identifier(c.name) for c in table.columns),
            table.sql_name,
            where,
            order,
            sql.Literal(limit),
        )
