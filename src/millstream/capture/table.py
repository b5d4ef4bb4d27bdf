"""A captured table as an application declares it: where it lives, and the compacted topic that holds its latest rows."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.event.topic import check_name


@dataclass(frozen=True)
class PostgresTable:
    """A table of a PostgreSQL database. `database` is the name under which the settings give its address."""

    database: str
    table: str
    schema: str = "public"


@dataclass(frozen=True)
class Table:
    """The latest row of every primary key, fed by change data capture into the compacted topic `name`."""

    name: str
    source: PostgresTable

    def __post_init__(self) -> None:
        check_name(self.name)


def postgres(database: str, *, table: str, schema: str = "public") -> PostgresTable:
    """Name a PostgreSQL table as the source of `app.table(…)`.

    database: the source's name in the settings (`[sources]` of millstream.toml, MILLSTREAM_SOURCE_<NAME>); a name without an
    address means the embedded PostgreSQL, in a database of that name.
    """
    return PostgresTable(database, table, schema)
