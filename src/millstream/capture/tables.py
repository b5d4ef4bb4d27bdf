"""The captured tables of one database: which are copied, which wait, and and which stand still, and why.

A table that cannot be captured as it is (no primary key, dropped, unreadable) stands still alone. It is no longer
watched, is looked at again every few seconds, and is watched and copied when it is mended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from millstream.app.inputs import Table
from millstream.capture.sink import Sink
from millstream.capture.source import Source, SourceTable, TableProblem
from millstream.capture.state import State, TableState
from millstream.settings import MillstreamError

AGAIN = 10  # a copy that failed is begun again after so many times as long as it took, so that it costs a tenth at most
AGAIN_S = 3600.0  # and after this long at most
COUNTED = 1_000_000  # rows counted at most for a total that is only shown
SPEAK_S = 10.0  # a wait for the source's transactions says so after this long

_log = logging.getLogger(__name__)


class Tables:
    """The tables of one capture. `state` has what is remembered of them; the caller saves it."""

    def __init__(self, wanted: Mapping[str, Table], source: Source, sink: Sink, state: State) -> None:
        self._wanted = wanted
        self._source = source
        self._sink = sink
        self._state = state
        self._identities: Mapping[str, str] = {}
        self._waiting: dict[str, int] = {}  # tables to copy once the transactions before this horizon have ended
        self._first = not state.confirmed  # nothing was ever captured
        self._waited = 0.0
        self._watched_bad = False
        self._copying = ("", 0.0)  # the table that is being copied, and since when
        self._again: dict[str, float] = {}  # when a table whose copy failed is looked at again
        self._estimates: dict[str, int] = {}
        self.found: dict[str, SourceTable] = {}
        self.stopped: dict[str, str] = {}
        self.altered: dict[str, tuple[SourceTable, int]] = {}

    # --- before the log is followed ---

    def open(self) -> None:
        """Look at every table and compare it with the state.

        Raises MillstreamError when nothing was captured before and no table can be: a mistake in the application.
        """
        self._identities = self._sink.prepare(list(self._wanted))
        for topic, table in self._wanted.items():
            try:
                self.found[topic] = self._source.describe(table)
            except TableProblem as problem:
                if self._first and len(self._wanted) == 1 + len(self.stopped):
                    raise
                self.stop(topic, str(problem))
        for topic in self._state.tables.keys() - self._wanted.keys():
            del self._state.tables[topic]
        for topic, found in self.found.items():
            self._compare(topic, found)

    def _compare(self, topic: str, table: SourceTable) -> None:
        """Find out whether the copy holds: not of a new table, nor when its topic is another one or has lost messages."""
        known = self._state.tables.get(topic)
        fresh = self._fresh(topic, table)
        if known is None or not known.relation:
            known, why = fresh, ""
        elif known.relation != fresh.relation:
            why = f"it was {known.relation} before"
        elif known.topic_id != fresh.topic_id:
            why = "its topic is another one than before"
        elif lost := known.lost(self._sink.ends(topic)):
            why = f"its topic has lost messages: {lost}"
        else:
            if not known.copied and known.after is None:  # nothing of it is copied yet: all there is may be old
                known.sweep = self._sink.ends(topic)
            return
        if why:
            _log.warning("%s is copied again: %s", table.full_name, why)
        if known.relation == fresh.relation:  # changes from before may still come: see look
            fresh.key, fresh.columns = known.key, known.columns
        fresh.restart(self._sink.ends(topic), why)
        self._state.tables[topic] = fresh

    def _fresh(self, topic: str, table: SourceTable) -> TableState:
        return TableState(
            relation=table.full_name,
            topic_id=self._identities.get(topic, ""),
            key=list(table.key),
            columns=dict(table.signature),
        )

    def copy_unwatched(self, present: Collection[str]) -> None:
        """Copy the tables whose changes have passed us by: somebody had the source not watch them, or made other ones."""
        for topic, table in self.found.items():
            state = self._state.tables[topic]
            if table.full_name not in present and (state.copied or state.after):
                _log.warning("%s is copied again: the source was not watching it", table.full_name)
                state.restart(self._sink.ends(topic), "the source was not watching it")

    def copy_all(self, why: str) -> None:
        """Copy every table, because the log before now is not ours."""
        for topic, state in self._state.tables.items():
            state.restart(self._sink.ends(topic), why)
            if (table := self.found.get(topic)) is not None:
                state.key, state.columns = list(table.key), dict(table.signature)

    def watch(self) -> None:
        """Have the source watch the tables; one that it cannot stands still."""
        problems = self._source.watch(list(self.found.values()))
        for topic, table in list(self.found.items()):
            if reason := problems.get(table.full_name):
                self.stop(topic, reason)
        if not self.found and self._first:
            raise MillstreamError("; ".join(self.stopped.values()))

    def wait(self) -> None:
        """Have the tables that are not copied wait for the transactions that wrote to them before they were watched."""
        mark = self._source.mark()
        self._waiting = {topic: mark for topic in self.found if not self._state.tables[topic].copied}
        self._waited = time.monotonic()

    # --- while it is followed ---

    @property
    def captured(self) -> dict[str, tuple[SourceTable, Mapping[str, str]]]:
        """The tables whose changes are captured, by topic, with the columns that the state knows."""
        return {topic: (table, self._state.tables[topic].columns) for topic, table in self.found.items()}

    @property
    def complete(self) -> bool:
        """Whether every table that can be captured is copied."""
        return all(self._state.tables[topic].copied for topic in self.found)

    def pending(self) -> str | None:
        """Return the topic of the next table to copy, None when there is none for now."""
        if self._waiting and self._source.passed(max(self._waiting.values())):
            self._waiting = {}
        elif self._waiting and time.monotonic() - self._waited > SPEAK_S:
            self._waited = time.monotonic() + 60
            oldest = self._source.holding_up()
            _log.warning("waiting for transactions from before the tables were watched: %s", oldest)
        tables = self._state.tables
        topic = next((t for t in self.found if not tables[t].copied and t not in self._waiting), None)
        if topic != self._copying[0]:
            self._copying = (topic or "", time.monotonic())
        return topic

    def stop(self, topic: str, reason: str) -> None:
        """Have a table stand still: its changes are left out, so that all of it is to be copied when it is mended."""
        if self.stopped.get(topic) != reason:
            _log.error("the topic %s stands still: %s", topic, reason)
        self.stopped[topic] = reason
        self._watched_bad |= self.found.pop(topic, None) is not None
        self.altered.pop(topic, None)
        self._waiting.pop(topic, None)
        if topic == self._copying[0]:
            now = time.monotonic()
            self._again[topic] = now + min(AGAIN_S, AGAIN * (now - self._copying[1]))
            self._copying = ("", 0.0)
        state = self._state.tables.setdefault(topic, TableState())
        state.restart(state.sweep, reason)

    def look(self, waiting: Callable[[], bool]) -> list[str]:
        """Look at what the log does not say; return the topics of tables that are others now, or that stand still.

        waiting: called meanwhile; False ends it.
        """
        changed = []
        for topic, table in self._wanted.items():
            before = self.found.get(topic)
            if before is None and time.monotonic() < self._again.get(topic, 0.0):
                continue
            try:
                now = self._source.describe(table)
                if before is None or before.id != now.id:
                    self._admit(topic, now, waiting)
                    changed.append(topic)
                    continue
            except TableProblem as problem:
                self.stop(topic, str(problem))
                if before is not None:
                    changed.append(topic)
                continue
            state = self._state.tables[topic]
            if (dict(now.signature), list(now.key)) != (state.columns, state.key):
                # Not yet: changes from before may still come, in their old form, and they must not be the last of their rows.
                self.altered[topic] = (now, self._source.end())
            elif (now.signature, now.key) != (before.signature, before.key):
                self.found[topic] = now
                changed.append(topic)
        if self._watched_bad:  # PostgreSQL refuses to update a published table without a replica identity
            self._watched_bad = bool(self._source.watch(list(self.found.values())))
        return changed

    def _admit(self, topic: str, table: SourceTable, waiting: Callable[[], bool]) -> None:
        """Begin to capture a table that was mended, or is another one now: watch it, and copy it when what ran has ended."""
        if not self._sink.flush(waiting):
            raise MillstreamError("stopped while a table was looked at")
        others = [t for name, t in self.found.items() if name != topic]
        if problem := self._source.watch([*others, table]).get(table.full_name):
            raise TableProblem(problem)
        reason = self.stopped.pop(topic, "it is another table than before")
        state = self._fresh(topic, table)
        state.restart(self._sink.ends(topic), reason)
        _log.warning("%s is copied again: %s", table.full_name, reason)
        self._state.tables[topic] = state
        self.found[topic] = table
        self.altered.pop(topic, None)
        self._waiting[topic] = self._source.mark()
        self._waited = time.monotonic()

    def alter(self, received: int, waiting: Callable[[], bool]) -> list[str]:
        """Copy those tables again whose rows are others now although no log says so, when the log was read up to that change.

        That is so after a column was added with a default, renamed or given another type, and after the key was changed.
        Returns the topics of the tables whose columns or key are others now.
        """
        done = []
        for topic, (table, position) in list(self.altered.items()):
            if received < position:
                continue
            state, now = self._state.tables[topic], table.signature
            rekeyed, rewritten = list(table.key) != state.key, altered(state.columns, now, table.defaulted)
            if (rekeyed or rewritten) and not self._sink.flush(waiting):
                break
            if self.altered.pop(topic, None) is None:  # it stands still: the log did not take a row of it just now
                continue
            if rekeyed:
                state.restart(self._sink.ends(topic), "its key was changed")
            elif rewritten:
                state.restart(None, "its columns were changed")
            if not state.copied:
                _log.info("%s is copied again: %s", table.full_name, state.reason)
            state.columns, state.key = dict(now), list(table.key)
            self.found[topic] = table
            done.append(topic)
        return done

    def status(self) -> dict[str, dict[str, object]]:
        """Return how far each table is: "snapshot", "waiting" (for the source's transactions), "streaming" or "stopped"."""
        return {topic: self._status(topic, state) for topic, state in self._state.tables.items()}

    def _status(self, topic: str, state: TableState) -> dict[str, object]:
        if topic in self.stopped:
            word = "stopped"
        elif topic in self._waiting:
            word = "waiting"
        else:
            word = "streaming" if state.copied else "snapshot"
        total = state.rows if state.copied or topic not in self.found else max(state.rows, self._total(topic))
        facts = {"rows": state.rows, "total": total, "copied": state.copied}
        return {**facts, "state": word, "reason": self.stopped.get(topic, state.reason)}

    def _total(self, topic: str) -> int:
        """About how many rows the table has: the planner's estimate, or a count of a table that was never analysed."""
        if topic not in self._estimates:
            table = self.found[topic]
            self._estimates[topic] = table.estimate or self._source.count(table, COUNTED)
        return self._estimates[topic]


def altered(before: Mapping[str, str], now: Mapping[str, str], defaulted: Collection[str]) -> bool:
    """Whether rows that nobody wrote are others after a change of columns, given as SourceTable.signature has them.

    A new column makes no difference while it is null everywhere; one that had another name, or another type, does.
    """
    numbers = {mark.partition(":")[0] for mark in before.values()}
    return any(
        before.get(name) != mark and (name in before or name in defaulted or mark.partition(":")[0] in numbers)
        for name, mark in now.items()
    )
