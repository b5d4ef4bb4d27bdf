"""The capture of one source: its tables into their topics, from the first row on and never again from the first.

One loop, one thread: receive from the log, send to the topics, and, while the snapshot of a table is not complete, a chunk of it
in between. About once a second everything sent is flushed; then the state is saved, and only then is the position confirmed to
the source, which may forget its log up to there (`_flush`). A crash at any point repeats what was not confirmed; repeated
changes come in their order, so the last message of each key is right again when the log has been read up to where it was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from millstream.app.inputs import Table
from millstream.capture import failpoints
from millstream.capture.changes import Changes
from millstream.capture.failpoints import reach
from millstream.capture.lag import LagWatch
from millstream.capture.sink import Sink
from millstream.capture.snapshotter import Snapshotter
from millstream.capture.source import Open, Source, TableProblem
from millstream.capture.state import StateFile
from millstream.capture.tables import Tables
from millstream.settings import MillstreamError

FLUSH_S = (
    1.0  # how often what is stored is confirmed to the source, so the most that a crash repeats under a light load
)
ALIVE_S = (
    5.0  # how often the source hears of us during long work; its wal_sender_timeout is 30 s embedded, 60 s by default
)
CHECK_S = 5.0  # how often the tables' columns are looked at
BURST_S = 0.2  # how long the log is read before the next chunk of a copy
IDLE_S = 0.25  # how long one wait for the log may take, so how late a stop is noticed

_log = logging.getLogger(__name__)


class Report(Protocol):
    """Takes what the capture says about itself (see monitor.status.Reporter.report)."""

    def __call__(self, kind: str, name: str, **facts: object) -> None: ...


class Capture:
    """Captures the tables of one source. `run` does everything; construct one per run."""

    def __init__(
        self,
        app: str,
        name: str,
        open_source: Open,
        tables: Sequence[Table],
        sink: Sink,
        *,
        state: Path,
        report: Report,
        stop: threading.Event,
    ) -> None:
        if not tables:
            raise MillstreamError(f"the source {name!r} has no table to capture.")
        self._app = app
        self._name = name
        self._open = open_source
        self._wanted = {t.name: t for t in tables}
        self._sink = sink
        self._file = StateFile(state, app, name)
        self._report = report
        self._stop = stop
        self._confirmed_at = 0.0
        self._flushed_at = 0.0
        self._checked_at = 0.0
        self._source: Source | None = None
        self._telling = threading.Lock()
        self._facts: dict[str, object] = {"state": "snapshot"}
        self._lag: dict[str, object] = {}
        sink.attend(self.alive, self._stop_table)

    def run(self, ready: Callable[[dict[str, object]], None]) -> None:
        """Capture until `stop` is set; call `ready` when every table is copied and the log read up to there.

        Raises MillstreamError when the source or the log refuses; starting again continues where it was.
        """
        try:
            with self._open(self.alive) as source:
                self._prepare(source)
                if not self._stop.is_set():
                    self._source = source
                    with LagWatch(source.watching, lambda: self._state.confirmed, self._tell_lag):
                        self._loop(source, ready)
        except MillstreamError:
            if not self._stop.is_set():  # else what was under way was given up, and is repeated by the next run
                raise
        finally:
            self._source = None

    # --- before the log is followed ---

    def _prepare(self, source: Source) -> None:
        self._state = state = self._file.load()
        self._tables = tables = Tables(self._wanted, source, self._sink, state)
        why = self._reason_to_start_over(source)
        tables.open()
        # The tables are watched before the log is kept (it is kept from behind that) or, if it is kept already, before they are
        # copied; see Tables.wait.
        present = source.watched()
        if present is None and not why:
            why = "what the source was to watch (a publication) is gone, so changes may have passed by"
        # What has to be copied must be known before it is watched: a crash after that finds it watched.
        tables.copy_unwatched(present or set())
        reason = why if state.confirmed else ""
        if reason:
            _log.warning("every table is copied again: %s", why)
        if why:
            state.confirmed = 0
        self._file.save(state)
        tables.watch()
        reach(failpoints.PUBLISHED)
        source.wait_until_free(self._stop)
        if why and not self._stop.is_set():
            state.confirmed = source.start_over(self._stop)
            reach(failpoints.SLOT_CREATED)
            tables.copy_all(reason)
        else:
            tables.wait()
        if self._stop.is_set():
            return
        state.system, state.database = source.identity, source.database
        self._file.save(state)
        self._changes = Changes(source.connector, self._app, source.database, self._sink, self._stop_table, self.alive)
        self._snapshotter = Snapshotter(source, self._sink, self._changes, self._record, self.alive)
        source.follow(state.confirmed, self._changes)
        source.capture(tables.captured)
        self._announce(list(tables.found))

    def _reason_to_start_over(self, source: Source) -> str:
        """Why the log cannot be followed from where we were, "" when it can."""
        state = self._state
        if not state.confirmed:
            return "nothing was captured before"
        if state.database != source.database:
            return "the source is another database than before"
        return source.cannot_resume(state.system, state.confirmed)

    # --- while the log is followed ---

    def _loop(self, source: Source, ready: Callable[[dict[str, object]], None]) -> None:
        told = False
        while not self._stop.is_set():
            pending = self._tables.pending()
            busy = source.receive(BURST_S if pending else FLUSH_S)
            if pending is not None:
                self._copy(source, pending)
            elif not busy:
                source.wait(IDLE_S)
            now = time.monotonic()
            if now - self._flushed_at >= FLUSH_S:
                self._flush(source)
            if now - self._checked_at >= CHECK_S:
                self._check(source)
            if self._tables.altered:
                self._changed(source, self._tables.alter(source.received, self.alive))
            if not told and self._tables.complete:
                told = True
                self._flush(source)
                ready({"source": self._name, "lsn": source.received})
        self._flush(source)

    def _copy(self, source: Source, topic: str) -> None:
        try:
            busy = self._snapshotter.step(topic, self._tables.found[topic], self._state.tables[topic])
        except TableProblem as problem:
            self._stop_table(topic, str(problem))
            return
        if self._snapshotter.stalled:
            self._checked_at = 0.0  # the table is another one now, or locked
        if not busy:
            source.wait(IDLE_S)

    def _stop_table(self, topic: str, reason: str) -> None:
        """Have a table stand still. The source still gives its changes until the next check; they do no harm."""
        self._tables.stop(topic, reason)
        self._snapshotter.drop(topic)
        self._checked_at = 0.0

    def _flush(self, source: Source) -> None:
        """Wait until everything sent is stored, remember that, and confirm it to the source, which may forget it."""
        self._flushed_at = time.monotonic()
        received = source.received
        reach(failpoints.FLUSHING)
        if not self._sink.flush(self.alive):
            return
        reach(failpoints.STORED)
        if received > self._state.confirmed:
            self._record(received)
            reach(failpoints.RECORDED)
            self._confirm()
            reach(failpoints.CONFIRMED)
        self._report_status()

    def _record(self, position: int = 0) -> None:
        """Save the state, with the position to confirm and the ends of the topics. Everything sent must be stored."""
        stored = self._sink.stored()  # this may take a while, in which the position before is confirmed again
        for topic, ends in stored.items():
            if (table := self._state.tables.get(topic)) is None:
                continue
            if lost := table.lost(ends):
                self._tables.altered.pop(topic, None)
                self._snapshotter.drop(topic)
                table.restart(ends, f"its topic has lost messages: {lost}")
                _log.error("%s is copied again: %s", table.relation, table.reason)
            table.ends = ends
        self._state.confirmed = max(position, self._state.confirmed)
        self._file.save(self._state)

    def alive(self) -> bool:
        """Called during long work: keeps the source's connection; False when the capture is to stop."""
        if time.monotonic() - self._confirmed_at > ALIVE_S:
            self._confirm()
        return not self._stop.is_set()

    def _confirm(self) -> None:
        if self._source is not None:
            self._source.confirm(self._state.confirmed)
            self._confirmed_at = time.monotonic()

    def _check(self, source: Source) -> None:
        """Look at what the log does not say: tables that broke or were mended, columns that changed rows."""
        self._checked_at = time.monotonic()
        self._changed(source, self._tables.look(self.alive))
        self.alive()

    def _changed(self, source: Source, topics: Sequence[str]) -> None:
        if not topics:
            return
        self._file.save(self._state)
        for topic in topics:
            self._snapshotter.drop(topic)
        source.capture(self._tables.captured)
        self._announce(topics)

    def _announce(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if (table := self._tables.found.get(topic)) is not None:
                self._changes.announce(topic, table.columns, table.key)

    def _report_status(self) -> None:
        self._tell(
            {
                "state": "streaming" if self._tables.complete else "snapshot",
                "problem": "; ".join(self._tables.stopped.values()),
                "tables": self._tables.status(),
                "lsn": self._state.confirmed,
                "changes": self._changes.count,
            }
        )

    def _tell_lag(self, facts: dict[str, object]) -> None:
        """Called by another thread."""
        with self._telling:
            self._lag = facts
            self._report("capture", self._name, **self._facts, **facts)

    def _tell(self, facts: dict[str, object]) -> None:
        with self._telling:
            self._facts = facts
            self._report("capture", self._name, **facts, **self._lag)
