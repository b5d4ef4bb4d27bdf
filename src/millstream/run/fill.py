"""Filling the databases of the embedded PostgreSQL: SQL of the user's, run once, before their tables are captured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from millstream.app import App
from millstream.run.part import Context, Step
from millstream.settings import MillstreamError, Settings


def filling(app: App, settings: Settings, given: Sequence[str]) -> list[Step]:
    """Return the steps for words such as "ops=tables.sql". Another content of the file is another step, done once too.

    Raises MillstreamError for a database that is not embedded here, or a file that cannot be read.
    """
    processes = {t.source.embedded_database(settings): t.source.process(settings).name for t in app.tables.values()}
    processes.pop("", None)
    steps = []
    for word in given:
        name, equals, path = word.partition("=")
        if not equals or name not in processes:
            raise MillstreamError(
                f"--fill: expected DATABASE=FILE with a database of the embedded PostgreSQL, got {word!r}."
                + (f" There is {', '.join(processes)}." if processes else " This application has none.")
                + " One with an address is filled there, for example with psql."
            )
        try:
            sql = Path(path).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise MillstreamError(f"--fill: {path} cannot be read: {error}.") from error
        steps.append(
            Step(
                f"fill-{name}-{hashlib.sha256(sql.encode()).hexdigest()[:8]}",
                call=_fill(name, path, sql),
                after={"postgres"},
                before={processes[name]},
                once=True,
                doing=f"running {path}",
            )
        )
    return steps


def _fill(name: str, path: str, sql: str) -> Callable[[Context], None]:
    def fill(context: Context) -> None:
        import psycopg

        from millstream.postgresql.connect import connect

        with connect(context.settings.source(name)) as connection:  # one transaction: all of it or nothing
            try:
                connection.execute(cast(Any, sql))
            except psycopg.Error as error:
                raise MillstreamError(
                    f"{path} was not run, and nothing of it is in the database {name!r}: {error}. It must be plain SQL: the"
                    " commands of psql, such as \\copy, are not."
                ) from error

    return fill
