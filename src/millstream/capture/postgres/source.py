"""One PostgreSQL database as a source: a connection for its tables, one that follows the log, a slot and a publication."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import psycopg
from psycopg import sql

from millstream.app.inputs import Table
from millstream.app.sources import PostgresTable
from millstream.capture.lag import Look
from millstream.capture.postgres import slot
from millstream.capture.postgres.catalog import OPTIONS, CatalogTable, describe
from millstream.capture.postgres.decoding import Captured, Decoder
from millstream.capture.postgres.lag import watching
from millstream.capture.postgres.pgoutput import Commit, decode
from millstream.capture.postgres.replication import DATA, KEEPALIVE, Replication, data_header, keepalive, left_at
from millstream.capture.postgres.rows import Rows
from millstream.capture.postgres.snapshot import ChunkReader, Moment, Unseen, snapshot
from millstream.capture.source import Receiver, Row, SourceTable, TableProblem
from millstream.postgresql.connect import connect, explain

LOCK_S = 2.0  # how long a chunk waits for a locked table before the log and the other tables have their turn

_log = logging.getLogger(__name__)


@contextmanager
def opened(app: str, source: str, conninfo: str, waiting: Callable[[], bool]) -> Iterator[PostgresSource]:
    """Connect to a database. Errors of PostgreSQL become MillstreamError, Unreachable for those that may pass."""
    made = PostgresSource(app, source, conninfo, waiting)
    try:
        made.check()
        yield made
    except psycopg.Error as error:
        raise explain(error, conninfo) from error
    finally:
        made.close()


class PostgresSource:
    """See capture.source.Source. Positions are log sequence numbers."""

    connector = "postgresql"

    def __init__(self, app: str, source: str, conninfo: str, waiting: Callable[[], bool]) -> None:
        self._conninfo = conninfo
        self._waiting = waiting
        self._slot = slot.slot_name(app, source)
        self._name = f"millstream capture {app}"
        self._connection = connect(conninfo, application=self._name, autocommit=True, options=OPTIONS)
        try:
            self._replication = Replication(conninfo, f"{self._name} log")
        except BaseException:
            self._connection.close()
            raise
        self._unseen = Unseen()
        self._following = False
        self._reader: ChunkReader | None = None
        self.database = self._connection.info.dbname
        self.received = 0

    def check(self) -> None:
        """Raise MillstreamError, saying what to do, when the server cannot give us its log."""
        slot.check_source(self._connection, self._conninfo, self._slot)
        self._system, self._timeline = self._replication.identify()
        self.identity = f"{self._system}/{self._timeline}"

    def close(self) -> None:
        """End the connections; the slot stays."""
        self._replication.close()
        self._connection.close()

    # --- tables ---

    def describe(self, table: Table) -> CatalogTable:
        """See Source."""
        source = cast(PostgresTable, table.source)
        return describe(self._connection, source.schema, source.table)

    def watched(self) -> set[str] | None:
        """See Source."""
        found = slot.published(self._connection, self._slot)
        return None if found is None else {f"{schema}.{name}" for schema, name in found}

    def watch(self, tables: Sequence[SourceTable]) -> dict[str, str]:
        """See Source."""
        return slot.publish(self._connection, self._slot, tables)

    def mark(self) -> int:
        """See Source."""
        return slot.horizon(self._connection)

    def passed(self, mark: int) -> bool:
        """See Source."""
        return slot.ended(self._connection, mark)

    def holding_up(self) -> str:
        """See Source."""
        return slot.oldest(self._connection)

    def count(self, table: SourceTable, at_most: int) -> int:
        """See Source."""
        query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS counted").format(
            sql.Identifier(table.schema, table.name), sql.Literal(at_most)
        )
        row = self._connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    @contextmanager
    def chunk(self, table: SourceTable, after: list[str] | None) -> Iterator[_Chunk]:
        """See Source."""
        found = cast(CatalogTable, table)
        if self._reader is None or self._reader.table != found or self._reader.after != after:
            self._reader = ChunkReader(found, after)
        chunk = _Chunk(self, self._reader)
        try:
            with snapshot(self._connection, self._unseen, self._waiting, LOCK_S) as moment:
                chunk.begin(moment)
                yield chunk
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable, psycopg.errors.LockNotAvailable):
            chunk.changed = True  # between the look and the reading
        except psycopg.errors.InsufficientPrivilege as error:
            raise TableProblem(f"{table.full_name} cannot be read: {error.diag.message_primary}") from error
        finally:
            if chunk.changed:
                self._reader = None

    # --- the log ---

    def cannot_resume(self, identity: str, position: int) -> str:
        """See Source. A timeline ends for those that follow another one when a standby is promoted."""
        system, _, timeline = identity.partition("/")
        if system != self._system:
            return "the source is another database than before"
        if timeline and int(timeline) != self._timeline:
            left = left_at(self._replication.history(self._timeline), int(timeline))
            if left is None or left < position:
                return "the source is now a standby that lacks the end of what was captured, or a copy from a backup"
        found = slot.find(self._connection, self._slot)
        if found is None:
            return f"the replication slot {self._slot} is gone"
        if found.lost:
            return f"the replication slot {self._slot} has lost its log ({found.lost}; see max_slot_wal_keep_size)"
        if position > self.end():
            return "the source's log ends before what was captured of it: the database was restored from a backup"
        if found.confirmed > position:
            return (
                f"the replication slot {self._slot} was moved by somebody else, or the capture's state is an old copy"
            )
        return ""

    def wait_until_free(self, stop: threading.Event) -> None:
        """See Source."""
        slot.wait_until_free(self._connection, self._slot, stop)

    def start_over(self, stop: threading.Event) -> int:
        """See Source."""
        slot.drop(self._connection, self._slot)
        with connect(self._conninfo, application=self._name, autocommit=True) as other:
            return slot.create(other, self._slot, stop, lambda: None)

    def follow(self, position: int, receiver: Receiver) -> None:
        """See Source."""
        self._decoder = Decoder(self._connection, self._unseen, receiver, self._waiting)
        self.received = position
        self._replication.start(self._slot, self._slot, position)
        self._following = True

    def capture(self, tables: Mapping[str, tuple[SourceTable, Mapping[str, str]]]) -> None:
        """See Source."""
        captured = {}
        for topic, (table, known) in tables.items():
            numbers = {name: int(text.partition(":")[0]) for name, text in known.items()}
            found = cast(CatalogTable, table)
            captured[found.id] = Captured(topic, found, numbers | dict(found.numbers))
        self._decoder.capture(captured)

    def receive(self, seconds: float) -> bool:
        """See Source."""
        until = time.monotonic() + seconds
        receive, decoder = self._replication.receive, self._decoder
        count = 0
        while (frame := receive()) is not None:
            count += 1
            kind = frame[0]
            if kind == DATA:
                lsn, _ = data_header(frame)
                message = decode(frame, 25)
                if message is not None:
                    decoder.handle(message, lsn)
                    if type(message) is Commit:
                        self.received = max(self.received, message.end_lsn)
            elif kind == KEEPALIVE:
                end, wanted = keepalive(frame)
                # Between transactions the source has sent everything before `end`: other tables' changes need not be kept.
                if not decoder.in_transaction:
                    self.received = max(self.received, end)
                if wanted:
                    self._waiting()
            if not count & 127 and time.monotonic() > until:
                break
        decoder.settle()
        return count > 0

    def wait(self, seconds: float) -> None:
        """See Source."""
        self._replication.wait(seconds)

    def nudge(self) -> None:
        """See Source. An empty transaction has PostgreSQL write its log out; else that may take 15 s (bgwriter.c)."""
        self._connection.execute("SET synchronous_commit = local")  # for this connection, which writes nothing else
        self._connection.execute("SELECT pg_logical_emit_message(true, 'millstream', '')")

    def confirm(self, position: int) -> None:
        """See Source."""
        if self._following:
            self._replication.confirm(position)

    def end(self) -> int:
        """See Source."""
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0]) if row else 0

    def watching(self) -> AbstractContextManager[Callable[[], Look]]:
        """See Source."""
        return watching(self._conninfo, self._slot, f"{self._name} lag")

    def read(self, reader: ChunkReader) -> Iterator[Row]:
        """Yield the rows of the reader's next chunk."""
        convert = Rows([c.name for c in reader.table.columns], reader.table.types).convert
        for values in reader.read(self._connection):
            yield convert(values)

    def same(self, table: CatalogTable) -> bool:
        """Whether the table is still as it was: columns may have come or gone since it was described."""
        now = describe(self._connection, table.schema, table.name)
        return (now.id, now.signature, now.key) == (table.id, table.signature, table.key)


class _Chunk:
    """See capture.source.Chunk."""

    def __init__(self, source: PostgresSource, reader: ChunkReader) -> None:
        self._source = source
        self._reader = reader
        self.changed = False
        self.position = self.at_ms = 0

    def begin(self, moment: Moment) -> None:
        """Belong to a snapshot."""
        self.position, self.at_ms = moment.lsn, moment.at_ms
        self.changed = not self._source.same(self._reader.table)

    def rows(self) -> Iterator[Row]:
        """See Chunk."""
        return iter(()) if self.changed else self._source.read(self._reader)

    @property
    def last(self) -> list[str] | None:
        """See Chunk."""
        return None if self._reader.finished else self._reader.after
