"""The capture of a PostgreSQL database as a process; its argument is the database's name. Ready when the snapshot is complete."""

from __future__ import annotations

from functools import partial

from millstream import capture
from millstream.app import load
from millstream.app.process import Call
from millstream.capture.postgres.source import opened


def main(call: Call) -> None:
    """Capture the tables that the application declares of this database until asked to end."""
    app, [database] = load(call.file), call.arguments
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
