"""Reading the views from PostgreSQL: their newest rows, only when a batch has changed them, within a bounded share of time."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import psycopg

from millstream.postgresql.connect import Connection, connect
from millstream.serve import columns
from millstream.serve.activity import Activity
from millstream.serve.state import Connection as Answering
from millstream.serve.state import ViewState
from millstream.settings import MillstreamError, redact
from millstream.stores import checkpoints, reading

LOOKING_S = 1.0
MAX_ROWS = 1_000  # rows that are read, for the chart; the table shows fewer
MAX_SHOWN = 60  # rows of the table on the page and in the JSON
MAX_COUNTED = 10_000  # a larger view is "10,000+ rows": counting it each second would cost its owner
MAX_CELL = 200  # characters of a value
SHARE = 20  # a reading that took t is followed by none for SHARE * t: at most a twentieth of the time is spent in the database
UNMARKED_S = 3.0  # between readings of a view that has no checkpoint: nothing says cheaply whether it has changed
FAILED_S = 5.0  # and of one that could not be read
SILENT_S = 3.0
NOWHERE = "No store of views is known: MILLSTREAM_POSTGRES is not set."
STATEMENT_S = 3.0
CONNECT_S = 3

_log = logging.getLogger(__name__)
# A page must never hold up the database: short statements, no waiting for locks, nothing written.
_OPTIONS = "-c lock_timeout=500 -c default_transaction_read_only=on -c timezone=UTC"


class Views:
    """Reads an application's views in a thread (`run`). `states` is replaced, never changed in place.

    views: the key columns of each view, by the view's table.
    """

    def __init__(
        self,
        app: str,
        conninfo: str,
        views: Mapping[str, Sequence[str]],
        activity: Activity,
    ) -> None:
        self.states: Mapping[str, ViewState] = {name: ViewState(name, list(key)) for name, key in views.items()}
        self.error: str | None = None
        self._app = app
        self._conninfo = conninfo
        self._keys = views
        self._activity = activity
        self._connection: Connection | None = None
        self._answered: float | None = None
        self._began: float | None = None
        self._seen: dict[str, object] = {}  # by view: the checkpoint whose rows we have
        self._not_before: dict[str, float] = {}

    @property
    def connection(self) -> Answering | None:
        """Whether the database answers; None when there is no view and so nothing to ask it.

        Without an address, which a console that is started by hand may lack, it does not.
        """
        if not self._keys:
            return None
        if not self._conninfo:
            return Answering("PostgreSQL", False, NOWHERE, None)
        began, error = self._began, self.error
        if error is None and began is not None and time.monotonic() - began > SILENT_S:
            error = f"It has been silent for {time.monotonic() - began:.0f} s."
        return Answering("PostgreSQL", self._answered is not None and error is None, error, self._answered)

    def run(self) -> None:
        """Read until the end; once at the start, then while somebody looks."""
        try:
            # libpq would take an empty address for whatever database of the user's listens on this machine.
            while self._keys and self._conninfo:
                self._began = time.monotonic()
                try:
                    self._read()
                    self._answered, self.error = time.time(), None
                except (psycopg.Error, MillstreamError) as error:
                    self._lost(error)
                except Exception as error:  # a mistake of ours must not silence the page for good
                    _log.exception("reading the views failed")
                    self._lost(error)
                self._began = None
                if not self._activity.rest(LOOKING_S, None):
                    return
        finally:
            self._close()

    def _read(self) -> None:
        if self._connection is None:
            self._connection = connect(
                self._conninfo,
                application="millstream console",
                autocommit=True,
                statement_timeout_s=STATEMENT_S,
                connect_timeout=CONNECT_S,
                options=_OPTIONS,
            )
        marks = _marks(self._connection, self._app)
        now = time.monotonic()
        for name in self._keys:
            mark = marks.get(name)
            if self._not_before.get(name, 0.0) > now or (mark is not None and self._seen.get(name) == mark):
                continue
            try:
                self._read_view(self._connection, name)
            except psycopg.Error as error:
                if self._connection.broken:
                    raise
                self._fail(name, error)
                continue
            took = time.monotonic() - now
            rest = max(took * SHARE, 0.0 if mark else UNMARKED_S)
            self._not_before[name] = time.monotonic() + rest

    def _read_view(self, connection: Connection, name: str) -> None:
        """Read one view together with the checkpoint that its rows belong to, from one snapshot."""
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            mark = _marks(connection, self._app).get(name)
            state = _view(connection, self._app, name, self._keys[name])
        if mark is not None:
            state.batch, state.at = mark[1], mark[2].timestamp() if mark[2] is not None else None
        self._seen[name] = mark
        self.states = {**self.states, name: state}

    def _fail(self, name: str, error: Exception) -> None:
        """Say that one view cannot be read (it is being changed, or it is too slow), keeping its last rows."""
        said = redact(" ".join(str(error).split()))
        known = self.states[name]
        if known.error != said:
            _log.warning("the view %s cannot be read, trying again: %s", name, said)
        self.states = {**self.states, name: msgspec.structs.replace(known, error=said)}
        self._seen.pop(name, None)
        self._not_before[name] = time.monotonic() + FAILED_S

    def _lost(self, error: Exception) -> None:
        if self.error is None:
            _log.warning("views cannot be read, trying again: %s", redact(str(error).strip()))
        self.error = redact(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
        self._seen.clear()
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def _marks(connection: Connection, app: str) -> dict[str, tuple[str, int, datetime | None]]:
    """By view, its last batch: checkpoint, number and time."""
    return {one.view: (one.query_id, one.batch_id, one.at) for one in checkpoints.owners(connection, app)}


def _view(connection: Connection, app: str, name: str, key: Sequence[str]) -> ViewState:
    found = reading.head(connection, app, name, limit=MAX_ROWS, count_to=MAX_COUNTED + 1)
    if found is None:
        return ViewState(name, list(key))
    described = columns.columns(found.columns, key)
    return ViewState(
        name,
        list(key),
        columns=described,
        rows=[[_bounded(columns.plain(value)) for value in row] for row in found.rows[:MAX_SHOWN]],
        total=min(found.total, MAX_COUNTED),
        more=found.total > MAX_COUNTED,
        chart=columns.chart(described, found.rows),
    )


def _bounded(value: Any) -> Any:
    return value[: MAX_CELL - 1] + "…" if isinstance(value, str) and len(value) > MAX_CELL else value
