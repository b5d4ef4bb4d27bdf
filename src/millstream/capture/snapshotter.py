"""The snapshot of a table: its rows into its topic, a chunk at a time, while the log is followed.

A chunk is read behind all that was received. So whatever it misses is still to come in the log, and what comes twice comes in
the order in which it happened: the last message of each key is the truth once the log has been read up to the last chunk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.capture import failpoints
from millstream.capture.changes import Changes
from millstream.capture.envelope import Envelope
from millstream.capture.failpoints import reach
from millstream.capture.sink import Sink
from millstream.capture.source import Source, SourceTable
from millstream.capture.state import TableState
from millstream.settings import MillstreamError

_log = logging.getLogger(__name__)


@dataclass
class _Running:
    """A table whose snapshot is under way."""

    topic: str
    table: SourceTable
    envelope: Envelope
    began: float = field(default_factory=time.monotonic)


class Snapshotter:
    """Takes the snapshots of tables, one after the other.

    save: writes the states. waiting: called during long work; False means that the capture is to stop.
    """

    def __init__(
        self, source: Source, sink: Sink, changes: Changes, save: Callable[[], None], waiting: Callable[[], bool]
    ) -> None:
        self._source = source
        self._sink = sink
        self._changes = changes
        self._save = save
        self._waiting = waiting
        self._current: _Running | None = None
        self._dropped: set[str] = set()  # since the chunk that is being copied began
        self.stalled = False  # the last chunk was none: its table was locked or is another one now

    def drop(self, topic: str) -> None:
        """Forget what is under way of a table, because its state was changed."""
        if self._current is not None and self._current.topic == topic:
            self._current = None
        self._dropped.add(topic)

    def copy_chunk(self, topic: str, table: SourceTable, state: TableState) -> int | None:
        """Copy the next chunk of a table. When that was the last one, return the log's position at which it was read.

        The state is saved when the log has the rows, so a crash repeats a chunk rather than losing one. Raises TableProblem
        when the table cannot be captured.
        """
        if self._current is None or self._current.topic != topic:
            self._current = _Running(topic, table, self._changes.envelope(table.schema, table.name, table.key))
        running = self._current
        envelope, send, dropped, count = running.envelope, self._sink.send, self._dropped, 0
        now_ms = int(time.time() * 1000)
        self._current = None  # unless all goes well
        self._dropped.clear()
        with self._source.chunk(running.table, state.after) as chunk:
            at_ms, position = chunk.at_ms, chunk.position
            for row in chunk.rows():
                send(topic, envelope.key(row), envelope.copied(row, at_ms, position, now_ms))
                count += 1
                if topic in dropped:
                    break
        reach(failpoints.CHUNK_SENT)
        self.stalled = chunk.changed
        if chunk.changed or not self._sink.flush(self._waiting) or topic in dropped:
            return None
        reach(failpoints.CHUNK_STORED)
        state.rows += count
        state.after = chunk.last
        if chunk.last is not None:
            self._current = running
            self._save()
            reach(failpoints.CHUNK_RECORDED)
            return None
        self._sweep(running, state)
        reach(failpoints.COPIED)
        state.copied, state.sweep = True, {}
        self._save()
        _log.info("%s copied: %s rows in %.1f s", table.full_name, state.rows, time.monotonic() - running.began)
        return chunk.position

    def _sweep(self, running: _Running, state: TableState) -> None:
        """Write a tombstone for every row that the topic had before the snapshot began and that the table no longer has."""
        if not state.sweep:
            return
        swept = 0
        for key in self._sink.live_keys(running.topic, state.sweep, self._waiting):
            self._sink.send(running.topic, key, None)
            swept += 1
            reach(failpoints.SWEEPING)
        if not self._sink.flush(self._waiting):
            raise MillstreamError("stopped while removing rows from a topic")
        name = running.table.full_name
        _log.info("%s: %s rows of the topic that the table no longer has were removed", name, swept)
