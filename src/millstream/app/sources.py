"""Sources: where the rows of a table come from. A new kind of source is a class here and a module that captures it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Protocol

from millstream.app.process import TOPICS, Process
from millstream.settings import MillstreamError, Settings

MAX_NAME = 63  # bytes: NAMEDATALEN - 1
_DATABASE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,47}")


class Source(Protocol):
    """What a declared table needs of its source. Tables of one `database` share one process, which captures them all.

    kind: what people call it, for example "PostgreSQL".
    database: the name under which the settings give its address.
    """

    kind: ClassVar[str]

    @property
    def database(self) -> str:
        """The name under which the settings give the address."""

    def describe(self) -> str:
        """Return which table of the database it is, in words: "public.planes"."""

    def process(self, settings: Settings) -> Process:
        """Return the process that captures the database. Equal names mean the same process.

        Beside `main(call)` its module may have
        `tables(app, settings, tables)`: what the database has of each table now, by topic: a `capture.source.SourceTable`, or the
        MillstreamError that says why it cannot be captured; for `plan`; and
        `borrowed(app, database, settings)`: a context in which a test captures it, and after which nothing of that is left there.
        """

    def embedded_database(self, settings: Settings) -> str:
        """Return the database that the embedded PostgreSQL must have for it, "" for none."""


@dataclass(frozen=True)
class PostgresTable:
    """A table of a PostgreSQL database. `database` is the name under which the settings give its address."""

    kind: ClassVar[str] = "PostgreSQL"

    database: str
    table: str
    schema: str = "public"

    def __post_init__(self) -> None:
        if not isinstance(self.database, str) or not _DATABASE.fullmatch(self.database):
            raise MillstreamError(
                "ms.postgres: expected the source's name in the settings, of letters, digits, '_' and '-', a letter first"
                f" (at most 48), got {self.database!r}."
            )
        for what, name in (("table", self.table), ("schema", self.schema)):
            if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name.encode()) <= MAX_NAME:
                raise MillstreamError(f"ms.postgres: expected {what} to be a name in PostgreSQL, got {name!r}.")

    def describe(self) -> str:
        """See Source."""
        return f"{self.schema}.{self.table}"

    def process(self, settings: Settings) -> Process:
        """See Source."""
        embedded = {"postgres"} if self.embedded_database(settings) else set[str]()
        return Process(
            f"capture-{self.database}",
            module="millstream.capture.postgres.process",
            arguments=(self.database, *(("embedded",) if embedded else ())),
            needs=frozenset({TOPICS, *embedded}),
            kind="capture",
            gets=frozenset({"kafka", f"sources.{self.database}"}),
            ready_within=None,  # a first snapshot takes as long as the tables are large
            doing="reading the tables as they are",
            extras=frozenset({"postgresql"}),
        )

    def embedded_database(self, settings: Settings) -> str:
        """See Source."""
        return "" if settings.source(self.database) else self.database


def how_to_fill(database: str) -> str:
    """Return how tables come into a database of the embedded PostgreSQL."""
    return (
        "The embedded PostgreSQL has no tables of its own: give SQL that makes and fills them, once, with"
        f" `millstream run FILE --fill {database}=tables.sql`; or name a database of yours in millstream.toml:"
        f' [sources] {database} = "host=…".'
    )


def postgres(database: str, *, table: str, schema: str = "public") -> PostgresTable:
    """Name a PostgreSQL table as the source of `app.table(…)`.

    database: the source's name in the settings (`[sources]` of millstream.toml, MILLSTREAM_SOURCE_<NAME>); a name without an
    address means the embedded PostgreSQL, in a database of that name.
    """
    return PostgresTable(database, table, schema)
