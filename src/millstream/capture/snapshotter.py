"""The snapshot of a table: its rows into its topic, a chunk at a time, each held until the log has been read up to it.

A chunk is read behind all that was received, and sent when the log has been read up to where it stood then. A change of one of
its rows that comes meanwhile takes the row out and is sent itself; what is left is sent then. So no value of a row goes back in
time in the topic, and no row that was deleted returns. (Andreakis, Papapanagiotou: "DBLog: A Watermark Based Change-Data-Capture
Framework", 2020; the marks are positions of the log here, so nothing is written to the source.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
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

MAX_HELD = 2  # chunks in memory: one is read while the log catches up with the one before
NUDGE_S = 0.2  # how long a chunk waits before the source is asked to write its log out

_log = logging.getLogger(__name__)


@dataclass
class _Held:
    """A chunk that waits. rows: messages by key; position: where the log stood; last: where the next chunk begins."""

    rows: dict[bytes, bytes]
    count: int
    position: int
    last: list[str] | None
    since: float


@dataclass
class _Running:
    """A table whose snapshot is under way. after: the last key that was read."""

    topic: str
    table: SourceTable
    envelope: Envelope
    after: list[str] | None
    began: float = field(default_factory=time.monotonic)
    read: bool = False
    held: deque[_Held] = field(default_factory=deque)


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
        self.stalled = False  # the last chunk was none: its table was locked or is another one now

    def drop(self, topic: str) -> None:
        """Forget what is under way of a table, because its state was changed."""
        if self._current is not None and self._current.topic == topic:
            self._current = None
            self._changes.hold("", ())

    def step(self, topic: str, table: SourceTable, state: TableState) -> bool:
        """Read or send a chunk of a table; returns whether there was one to read or send now.

        The state is saved when the log has the rows, so a crash repeats a chunk rather than losing one. Raises TableProblem
        when the table cannot be captured.
        """
        self.stalled = False
        running = self._current
        if running is None or running.topic != topic:
            envelope = self._changes.envelope(topic, table.schema, table.name, table.columns, table.key)
            self._current = running = _Running(topic, table, envelope, state.after)
        if running.held and running.held[0].position <= self._source.received:
            self._send(running, running.held.popleft(), state)
            return True
        if not running.read and len(running.held) < MAX_HELD:
            self._read(running)
            return not self.stalled
        if (now := time.monotonic()) - running.held[0].since > NUDGE_S:
            running.held[0].since = now
            self._source.nudge()
        return False

    def _read(self, running: _Running) -> None:
        rows: dict[bytes, bytes] = {}
        count, now_ms = 0, int(time.time() * 1000)
        key, copied = running.envelope.key, running.envelope.copied
        with self._source.chunk(running.table, running.after) as chunk:
            at_ms, position = chunk.at_ms, chunk.position
            for row in chunk.rows():
                rows[key(row)] = copied(row, at_ms, position, now_ms)
                count += 1
        self.stalled = chunk.changed
        if chunk.changed:
            self.drop(running.topic)
            return
        running.after, running.read = chunk.last, chunk.last is None
        running.held.append(_Held(rows, count, position, chunk.last, time.monotonic()))
        self._changes.hold(running.topic, [held.rows for held in running.held])
        reach(failpoints.CHUNK_READ)

    def _send(self, running: _Running, held: _Held, state: TableState) -> None:
        topic, send = running.topic, self._sink.send
        self._changes.hold(topic, [other.rows for other in running.held])
        for key, message in held.rows.items():
            send(topic, key, message)
            if self._current is not running:  # the log did not take a row
                return
        reach(failpoints.CHUNK_SENT)
        if not self._sink.flush(self._waiting):
            self.drop(topic)
        if self._current is not running:
            return
        reach(failpoints.CHUNK_STORED)
        state.after = held.last
        state.rows += held.count
        if held.last is not None:
            self._save()
            reach(failpoints.CHUNK_RECORDED)
            return
        self._sweep(running, state)
        reach(failpoints.COPIED)
        self._current = None
        state.copied, state.sweep = True, {}
        self._save()
        _log.info("%s copied: %s rows in %.1f s", running.table.full_name, state.rows, time.monotonic() - running.began)

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
