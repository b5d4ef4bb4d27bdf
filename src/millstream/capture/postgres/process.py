"""The capture of a PostgreSQL database as a process; its argument is the database's name. Ready when the snapshot is complete.

A second argument, "embedded", says that the database is one of the embedded PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from millstream import capture
from millstream.app import load
from millstream.app.inputs import Table
from millstream.app.process import Call
from millstream.app.sources import PostgresTable, how_to_fill
from millstream.capture.postgres import slot
from millstream.capture.postgres.catalog import OPTIONS, describe
from millstream.capture.postgres.source import opened
from millstream.capture.source import SourceTable, TableProblem
from millstream.postgresql.connect import address, connect
from millstream.settings import MillstreamError, Settings

LOOK_S = 3  # for a connection; `plan` waits for it


def main(call: Call) -> None:
    """Capture the tables that the application declares of this database until asked to end."""
    app, database = load(call.file), call.arguments[0]
    try:
        capture.run(
            app.name,
            database,
            partial(opened, app.name, database, call.settings.source(database)),
            [table for table in app.tables.values() if table.source.database == database],
            call.settings.log,
            state=call.settings.data / "capture" / database,
            ready=call.ready,
            stop=call.stop,
        )
    except TableProblem as problem:
        if "embedded" in call.arguments[1:]:
            raise MillstreamError(f"{problem} {how_to_fill(database)}") from problem
        raise


def tables(app: str, settings: Settings, wanted: Sequence[Table]) -> Mapping[str, SourceTable | MillstreamError]:
    """Return what the database has of each table now, by topic, or why it cannot be captured. Changes nothing.

    Raises MillstreamError when the database does not answer, or cannot give its log.
    """
    database = wanted[0].source.database
    conninfo = settings.source(database)
    with connect(conninfo, autocommit=True, connect_timeout=LOOK_S, options=OPTIONS) as connection:
        slot.check_source(connection, conninfo, slot.slot_name(app, database))
        found: dict[str, SourceTable | MillstreamError] = {}
        for table in wanted:
            try:
                source = cast(PostgresTable, table.source)
                found[table.name] = describe(connection, source.schema, source.table)
            except TableProblem as problem:
                found[table.name] = problem
        return found


@contextmanager
def borrowed(app: str, database: str, settings: Settings) -> Iterator[None]:
    """While inside, a test captures a database; afterwards its slot is gone, and the publication unless it was there before.

    Raises MillstreamError when the slot is there: it belongs to an application that runs elsewhere.
    """
    name, conninfo = slot.slot_name(app, database), settings.source(database)
    with connect(conninfo, autocommit=True) as connection:
        if slot.find(connection, name) is not None:
            raise MillstreamError(
                f"the source {database!r} at {address(conninfo)} has the replication slot {name}: an application named"
                f" {app!r} captures it, and a test would take its changes away. Give the test a database of its own."
                f" If a test that was killed left it: SELECT pg_drop_replication_slot('{name}');"
            )
        published = slot.published(connection, name) is not None
    try:
        yield
    finally:
        with connect(conninfo, autocommit=True) as connection:
            slot.remove(connection, name, publication=not published)
