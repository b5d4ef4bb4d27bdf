"""Copying tables into their topics, a chunk at a time, while the log is followed. See snapshot.py for why that is right."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from millstream.capture import failpoints
from millstream.capture.catalog import SourceTable, TableProblem, describe
from millstream.capture.envelope import Envelope
from millstream.capture.failpoints import reach
from millstream.capture.sink import Sink
from millstream.capture.snapshot import ChunkReader, Unseen, snapshot
from millstream.capture.state import TableState
from millstream.postgresql.connect import Connection
from millstream.settings import MillstreamError

LOCK_S = 2.0  # how long a chunk waits for a locked table before the log and the other tables have their turn

_log = logging.getLogger(__name__)


@dataclass
class Copy:
    """A table that is being copied: its topic, its reader, and how far the state knows it to be."""

    topic: str
    table: SourceTable
    state: TableState
    reader: ChunkReader
    envelope: Envelope
    began: float = field(default_factory=time.monotonic)


class Copier:
    """Copies the tables whose state says that they are not copied, one after the other.

    save: writes the states. waiting: called during long work; False means that the capture is to stop.
    """

    def __init__(
        self,
        app: str,
        connection: Connection,
        sink: Sink,
        unseen: Unseen,
        save: Callable[[], None],
        waiting: Callable[[], bool],
    ) -> None:
        self._app = app
        self._connection = connection
        self._sink = sink
        self._unseen = unseen
        self._save = save
        self._waiting = waiting
        self._current: Copy | None = None

    def drop(self, topic: str) -> None:
        """Forget what is read of a table, because its state was changed."""
        if self._current is not None and self._current.topic == topic:
            self._current = None

    def copy_chunk(self, topic: str, table: SourceTable, state: TableState) -> int | None:
        """Copy the next chunk of a table. When that was the last one, return the log's position at which it was read.

        The state is saved when the log has the rows, so a crash repeats a chunk rather than losing one. Raises TableProblem
        when the table cannot be captured.
        """
        copy = self._open(topic, table, state)
        try:
            with snapshot(self._connection, self._unseen, self._waiting, LOCK_S) as moment:
                # As it is in this snapshot: columns may have come or gone since the chunk before.
                table = describe(self._connection, table.schema, table.name)
                if table.signature() != copy.table.signature() or table.key != copy.table.key:
                    self._current = None
                    return None
                before = state.rows
                now_ms = int(time.time() * 1000)
                envelope, send = copy.envelope, self._sink.send
                for values in copy.reader.read(self._connection):
                    row = envelope.convert(values)
                    send(topic, envelope.key(row), envelope.copied(row, moment.at_ms, moment.lsn, now_ms))
                    state.rows += 1
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable, psycopg.errors.LockNotAvailable):
            self._current = None  # changed between the look and the reading, or locked: look again
            return None
        except psycopg.errors.InsufficientPrivilege as error:
            self._current = None
            raise TableProblem(f"{table.full_name} cannot be read: {error.diag.message_primary}") from error
        reach(failpoints.CHUNK_SENT)
        if not self._sink.flush(self._waiting):
            state.rows = before
            self._current = None
            return None
        reach(failpoints.CHUNK_STORED)
        state.after = copy.reader.after
        if not copy.reader.finished:
            self._save()
            reach(failpoints.CHUNK_RECORDED)
            return None
        self._sweep(copy)
        reach(failpoints.COPIED)
        state.copied, state.after, state.sweep = True, None, {}
        self._current = None
        self._save()
        _log.info("%s copied: %s rows in %.1f s", table.full_name, state.rows, time.monotonic() - copy.began)
        return moment.lsn

    def _open(self, topic: str, table: SourceTable, state: TableState) -> Copy:
        if self._current is None or self._current.topic != topic:
            table = describe(self._connection, table.schema, table.name)
            envelope = Envelope(
                self._app, self._connection.info.dbname, table.schema, table.name, table.columns, table.key
            )
            self._current = Copy(topic, table, state, ChunkReader(table, state.after), envelope)
        return self._current

    def _sweep(self, copy: Copy) -> None:
        """Write a tombstone for every row that the topic had before the copy began and that the table no longer has."""
        if not copy.state.sweep:
            return
        swept = 0
        for key in self._sink.live_keys(copy.topic, copy.state.sweep, self._waiting):
            self._sink.send(copy.topic, key, None)
            swept += 1
            reach(failpoints.SWEEPING)
        if not self._sink.flush(self._waiting):
            raise MillstreamError("stopped while removing rows from a topic")
        _log.info("%s: %s rows of the topic that the table no longer has were removed", copy.table.full_name, swept)
