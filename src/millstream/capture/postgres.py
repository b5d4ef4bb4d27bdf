"""The capture of one PostgreSQL database: its tables into their topics, from the first row on and never again from the first.

One loop, one thread: receive from the log, send to the topics, and, while a table is not copied yet, a chunk of it in between.
About once a second everything sent is waited for; then the state is saved, and only then the source may forget its log up to
there (`_settle`). A crash at any point repeats what was not settled; repeated changes come in their order, so the last message
of each key is right again when the log has been read up to where it was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec
import psycopg
from psycopg import sql

from millstream.app.inputs import Table
from millstream.app.names import SCHEMAS
from millstream.app.sources import PostgresTable
from millstream.capture import failpoints, slot
from millstream.capture.catalog import OPTIONS, SourceTable, describe
from millstream.capture.changes import Changes
from millstream.capture.copier import Copier
from millstream.capture.envelope import Column
from millstream.capture.failpoints import reach
from millstream.capture.pgoutput import Commit, decode
from millstream.capture.replication import DATA, KEEPALIVE, Replication, data_header, keepalive
from millstream.capture.sink import Sink
from millstream.capture.snapshot import Unseen
from millstream.capture.state import StateFile, TableState
from millstream.postgresql.connect import Connection, connect, explain
from millstream.settings import MillstreamError

SETTLE_S = 1.0  # how often the source is told what is stored, so the most that a crash repeats under a light load
ALIVE_S = (
    5.0  # how often the source hears of us during long work; its wal_sender_timeout is 30 s embedded, 60 s by default
)
LOOK_S = 5.0  # how often the tables' columns and the lag are looked at
BURST_S = 0.2  # how long the log is read before the next chunk of a copy
COUNTED = 1_000_000  # rows counted at most for a total that is only shown
IDLE_S = 0.25  # how long one wait for the log may take, so how late a stop is noticed

_log = logging.getLogger(__name__)


class Report(Protocol):
    """Takes what the capture says about itself (see monitor.status.Reporter.report)."""

    def __call__(self, kind: str, name: str, **facts: object) -> None: ...


class Capture:
    """Captures the tables of one database. `run` does everything; construct one per run."""

    def __init__(
        self,
        app: str,
        source: str,
        conninfo: str,
        tables: Sequence[Table],
        sink: Sink,
        *,
        state: Path,
        report: Report,
        stop: threading.Event,
    ) -> None:
        if not tables:
            raise MillstreamError(f"the source {source!r} has no table to capture.")
        self._app = app
        self._source = source
        self._conninfo = conninfo
        self._wanted = {t.name: t for t in tables}
        self._sink = sink
        self._file = StateFile(state, app, source)
        self._report = report
        self._stop = stop
        self._slot = slot.slot_name(app, source)
        self._name = f"millstream capture {app}"
        self._tables: dict[str, SourceTable] = {}
        self._estimates: dict[str, int] = {}
        self._schemas: dict[str, bytes] = {}
        self._unseen = Unseen()
        self._received = 0  # up to here everything was handed to the sink
        self._until = 0  # a copy is complete when the log was read up to here
        self._server_lsn = 0
        self._altered: dict[str, tuple[SourceTable, int]] = {}  # tables to copy anew when the log was read up to there
        self._spoke = 0.0
        self._settled = 0.0
        self._looked = 0.0
        self._replication: Replication | None = None

    def run(self, ready: Callable[[dict[str, object]], None]) -> None:
        """Capture until `stop` is set; call `ready` when every table is copied and the log read up to there.

        Raises MillstreamError when the source or the log refuses; starting again goes on where it was.
        """
        self._connection = connect(self._conninfo, application=self._name, autocommit=True, options=OPTIONS)
        replication = Replication(self._conninfo, f"{self._name} log")
        try:
            self._prepare(replication)
            if self._stop.is_set():
                return
            replication.start(self._slot, self._slot, self._state.confirmed)
            self._replication = replication
            self._loop(replication, ready)
        except MillstreamError:
            if not self._stop.is_set():  # else what was going on was given up, and is repeated by the next run
                raise
        except psycopg.Error as error:
            raise explain(error, self._conninfo) from error
        finally:
            self._replication = None
            replication.close()
            self._connection.close()

    # --- before the log is followed ---

    def _prepare(self, replication: Replication) -> None:
        connection = self._connection
        slot.check_source(connection, self._conninfo, self._slot)
        for topic, table in self._wanted.items():
            source = cast(PostgresTable, table.source)
            self._tables[topic] = describe(connection, source.schema, source.table)
        identities = self._sink.prepare(list(self._wanted))
        self._state = self._file.load()
        system = replication.system()
        why = self._why_anew(system)
        self._compare_tables(identities)
        # The tables are published before the slot exists (a new slot starts behind the publication) or, if it does exist, before
        # they are copied; see wait_for_running.
        present = slot.published(connection, self._slot)
        if present is None and not why:
            why = f"the publication {self._slot} is gone, so changes may have passed it by"
            _log.warning("every table is copied anew: %s", why)
            self._state.confirmed = 0
        # What has to be copied must be known before it is published: a crash after that finds it published.
        self._copy_unpublished(present or set())
        self._file.save(self._state)
        slot.publish(connection, self._slot, list(self._tables.values()))
        reach(failpoints.PUBLISHED)
        slot.wait_until_free(connection, self._slot, self._stop)
        if why and not self._stop.is_set():
            self._make_slot(why, system)
        elif any(not t.copied for t in self._state.tables.values()):
            slot.wait_for_running(connection, self._stop)
        if self._stop.is_set():
            return
        self._received = self._state.confirmed
        self._file.save(self._state)
        self._changes = Changes(self._app, connection, self._sink, self._unseen, self._publish_schema, self.alive)
        self._copier = Copier(self._app, connection, self._sink, self._unseen, self._record, self.alive)
        self._bind()
        for topic, found in self._tables.items():
            self._publish_schema(topic, found.columns, found.key)

    def _why_anew(self, system: str) -> str:
        """Why the slot cannot be followed from where we were, "" when it can."""
        found = slot.find(self._connection, self._slot)
        state = self._state
        if not state.confirmed:
            return "nothing was captured before"
        if (state.system, state.database) != (system, self._connection.info.dbname):
            return "the source is another database than before"
        if found is None:
            return f"the replication slot {self._slot} is gone"
        if found.lost:
            return f"the replication slot {self._slot} has lost its log ({found.lost}; see max_slot_wal_keep_size)"
        if found.confirmed > state.confirmed:
            return (
                f"the replication slot {self._slot} was moved by somebody else, or the capture's state is an old copy"
            )
        return ""

    def _make_slot(self, why: str, system: str) -> None:
        """Start from a new slot: every table is copied, and what its topic has beyond it is removed."""
        if self._state.confirmed:
            _log.warning("every table is copied anew: %s", why)
        slot.drop(self._connection, self._slot)
        with connect(self._conninfo, application=self._name, autocommit=True) as other:
            position = slot.create(other, self._slot, self._stop, lambda: None)
        reach(failpoints.SLOT_CREATED)
        state = self._state
        state.system, state.database, state.slot = system, self._connection.info.dbname, self._slot
        state.confirmed = position
        for topic, table in state.tables.items():
            table.restart(self._sink.ends(topic), why)
            table.key, table.columns = list(self._tables[topic].key), self._tables[topic].signature()

    def _compare_tables(self, identities: Mapping[str, str]) -> None:
        """Find the tables whose copy does not hold: new ones, those whose topic was made anew, those with another key."""
        state = self._state
        for topic in state.tables.keys() - self._wanted.keys():
            del state.tables[topic]
        for topic, table in self._tables.items():
            known = state.tables.get(topic)
            fresh = TableState(
                relation=table.full_name,
                topic_id=identities.get(topic, ""),
                key=list(table.key),
                columns=table.signature(),
            )
            if known is None:
                known, why = fresh, ""
            elif known.relation != fresh.relation:
                why = f"it was {known.relation} before"
            elif known.topic_id != fresh.topic_id:
                why = "its topic was made anew"
            elif lost := known.lost(self._sink.ends(topic)):
                why = f"its topic has lost messages: {lost}"
            else:
                state.tables[topic] = known
                continue
            if why:
                _log.warning("%s is copied anew: %s", table.full_name, why)
            if known.relation == fresh.relation:  # changes from before may still come: see _look
                fresh.key, fresh.columns = known.key, known.columns
            fresh.restart(self._sink.ends(topic), why)
            state.tables[topic] = fresh

    def _copy_unpublished(self, present: Collection[tuple[str, str]]) -> None:
        """Copy the tables whose changes have passed us by: somebody took them out of the publication, or made them anew."""
        for topic, table in self._tables.items():
            state = self._state.tables[topic]
            if (table.schema, table.name) not in present and (state.copied or state.after):
                _log.warning("%s is copied anew: the publication %s does not hold it", table.full_name, self._slot)
                state.restart(self._sink.ends(topic), "the publication did not hold it")

    def _bind(self) -> None:
        self._changes.tables = {table.id: (topic, table) for topic, table in self._tables.items()}

    # --- while the log is followed ---

    def _loop(self, replication: Replication, ready: Callable[[dict[str, object]], None]) -> None:
        told = False
        while not self._stop.is_set():
            pending = next((topic for topic, t in self._state.tables.items() if not t.copied), None)
            busy = self._receive(replication, BURST_S if pending else SETTLE_S)
            if pending is not None:
                self._copy(pending)
            elif not busy:
                replication.wait(IDLE_S)
            now = time.monotonic()
            if now - self._settled >= SETTLE_S:
                self._settle()
            if now - self._looked >= LOOK_S:
                self._look()
            if self._altered:
                self._copy_altered()
            if not told and self._complete():
                told = True
                self._settle()
                self._tell()
                ready({"source": self._source, "lsn": self._received})
        self._settle()
        self._tell()

    def _complete(self) -> bool:
        return self._received >= self._until and all(t.copied for t in self._state.tables.values())

    def _receive(self, replication: Replication, seconds: float) -> bool:
        """Take what has arrived, for at most `seconds`; returns whether there was anything."""
        until = time.monotonic() + seconds
        receive, changes = replication.receive, self._changes
        count = 0
        while (frame := receive()) is not None:
            count += 1
            kind = frame[0]
            if kind == DATA:
                lsn, _ = data_header(frame)
                message = decode(frame[25:])
                if message is not None:
                    changes.handle(message, lsn)
                    if type(message) is Commit:
                        reach(failpoints.COMMIT_SENT)
                        self._received = max(self._received, message.end_lsn)
            elif kind == KEEPALIVE:
                end, wanted = keepalive(frame)
                # Between transactions the source has sent everything before `end`: other tables' changes need not be kept.
                if not changes.in_transaction:
                    self._received = max(self._received, end)
                if wanted:
                    self._speak()
            if not count & 127 and time.monotonic() > until:
                break
        return count > 0

    def _copy(self, topic: str) -> None:
        finished = self._copier.copy_chunk(topic, self._tables[topic], self._state.tables[topic])
        if finished is not None:
            self._until = max(self._until, finished)

    def _settle(self) -> None:
        """Wait until everything sent is stored, remember that, and let the source forget it."""
        self._settled = time.monotonic()
        received = self._received
        reach(failpoints.FLUSHING)
        if not self._sink.flush(self.alive):
            return
        reach(failpoints.STORED)
        if received > self._state.confirmed:
            self._state.confirmed = received
            self._record()
            reach(failpoints.RECORDED)
            self._speak()
            reach(failpoints.CONFIRMED)
        self._tell()

    def _record(self) -> None:
        """Save the state, with the ends of the topics that it speaks of. Everything sent must be stored."""
        for topic, ends in self._sink.stored().items():
            if (table := self._state.tables.get(topic)) is None:
                continue
            if lost := table.lost(ends):
                self._altered.pop(topic, None)
                self._copier.drop(topic)
                table.restart(ends, f"its topic has lost messages: {lost}")
                _log.error("%s is copied anew: %s", table.relation, table.reason)
            table.ends = ends
        self._file.save(self._state)

    def alive(self) -> bool:
        """Called during long work: keeps the source's connection; False when the capture is to stop."""
        if time.monotonic() - self._spoke > ALIVE_S:
            self._speak()
        return not self._stop.is_set()

    def _speak(self) -> None:
        if self._replication is not None:
            self._replication.confirm(self._state.confirmed)
            self._spoke = time.monotonic()

    def _look(self) -> None:
        """Look at what the log does not say: how far it goes, and that rows changed because their columns or key did."""
        self._looked = time.monotonic()
        for topic, before in list(self._tables.items()):
            table = describe(self._connection, before.schema, before.name)
            if table.id != before.id:
                raise MillstreamError(f"{table.full_name} was made anew; starting again copies it.")
            state = self._state.tables[topic]
            if (table.signature(), list(table.key)) != (state.columns, state.key):
                # Not yet: changes from before may still come, in their old form, and they must not be the last of their rows.
                self._altered[topic] = (table, self._position("insert"))
        self._server_lsn = self._position("flush")
        self.alive()

    def _copy_altered(self) -> None:
        """Copy the tables anew whose rows are others now although no log says so, when the log was read up to that change.

        That is so after a column was added with a default, renamed or given another type, and after the key was changed.
        """
        for topic, (table, position) in list(self._altered.items()):
            if self._received < position:
                continue
            del self._altered[topic]
            state, now = self._state.tables[topic], table.signature()
            rekeyed = list(table.key) != state.key
            if (rekeyed or altered(state.columns, now, table.defaulted)) and not self._sink.flush(self.alive):
                return
            if rekeyed:
                state.restart(self._sink.ends(topic), "its key was changed")
            elif altered(state.columns, now, table.defaulted):
                state.restart(None, "its columns were changed")
            if not state.copied:
                _log.info("%s is copied anew: %s", table.full_name, state.reason)
            state.columns, state.key = now, list(table.key)
            self._file.save(self._state)
            self._copier.drop(topic)
            self._tables[topic] = table
            self._bind()
            self._publish_schema(topic, table.columns, table.key)

    def _position(self, kind: str) -> int:
        query = sql.SQL("SELECT {}() - '0/0'::pg_lsn").format(sql.Identifier(f"pg_current_wal_{kind}_lsn"))
        row = self._connection.execute(query).fetchone()
        return int(row[0]) if row else 0

    def _publish_schema(self, topic: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        value = msgspec.json.encode({"topic": topic, "columns": [c.describe() for c in columns], "key": list(key)})
        if self._schemas.get(topic) != value:
            self._schemas[topic] = value
            self._sink.send(SCHEMAS, topic.encode(), value)
            self._sink.flush(self.alive)  # a reader of the rows that follow finds their columns there

    def _tell(self) -> None:
        states = self._state.tables
        self._report(
            "capture",
            self._source,
            state="streaming" if self._complete() else "snapshot",
            tables={
                topic: {
                    "rows": s.rows,
                    "total": max(s.rows, self._total(topic)) if not s.copied else s.rows,
                    "copied": s.copied,
                    "state": "streaming" if s.copied else "snapshot",
                    "reason": s.reason,
                }
                for topic, s in states.items()
            },
            lsn=self._state.confirmed,
            lag_bytes=max(0, self._server_lsn - self._received),
            changes=self._changes.count,
        )

    def _total(self, topic: str) -> int:
        """About how many rows the table has: the planner's estimate, or a count of a table that was never analysed."""
        if topic not in self._estimates:
            table = self._tables[topic]
            self._estimates[topic] = table.estimate or count_rows(self._connection, table)
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


def count_rows(connection: Connection, table: SourceTable) -> int:
    """Return the number of rows of a table, at most COUNTED."""
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS counted").format(
        table.sql_name, sql.Literal(COUNTED)
    )
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
