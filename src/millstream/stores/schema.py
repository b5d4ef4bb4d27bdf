"""The tables of views: created, or brought up to what a query's rows have become."""

from __future__ import annotations

import psycopg
from psycopg import sql

from millstream.postgresql.connect import Connection, identifiers
from millstream.settings import MillstreamError
from millstream.stores.checkpoints import lock
from millstream.stores.target import Column, Target, type_name

OLDEST = 15  # the PostgreSQL that has NULLS NOT DISTINCT
# A type may become one that holds all its values; anything else would change what readers see.
_WIDENS = {
    ("smallint", "integer"),
    ("smallint", "bigint"),
    ("integer", "bigint"),
    ("real", "double precision"),
    ("date", "timestamp with time zone"),
}


def ensure(connection: Connection, target: Target) -> None:
    """Create the target's table, or bring it up to the target: new columns are added, types widened, dropped ones left.

    Raises MillstreamError when a column changed its type otherwise, when the key changed, or when the role may not do it.
    """
    if connection.info.server_version < OLDEST * 10_000:
        raise MillstreamError(
            f"views need PostgreSQL {OLDEST} or newer, {connection.info.host} has {connection.info.server_version // 10_000}."
        )
    try:
        with connection.transaction():
            lock(connection, target.full_name)
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(target.schema)))
            present = _present(connection, target)
            if not present:
                _create(connection, target)
                return
            for column in target.columns:
                _bring_up(connection, target, column, present.get(column.name))
            _check_key(connection, target)
    except psycopg.errors.InsufficientPrivilege as error:
        raise MillstreamError(
            f"the role {connection.info.user!r} may not create or change {target.full_name} in {connection.info.dbname!r}:"
            f" {error.diag.message_primary}. Grant it CREATE on the database, and the ownership of the table."
        ) from error


def _present(connection: Connection, target: Target) -> dict[str, str]:
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        [target.schema, target.table],
    ).fetchall()
    return {row[0]: row[1] for row in rows}


def _create(connection: Connection, target: Target) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(c.name), type_name(c.type)) for c in target.columns
    )
    connection.execute(
        sql.SQL("CREATE TABLE {} ({}, UNIQUE NULLS NOT DISTINCT ({}))").format(
            target.sql_name, columns, identifiers(target.key)
        )
    )


def _bring_up(connection: Connection, target: Target, column: Column, present: str | None) -> None:
    alter = sql.SQL("ALTER TABLE {} ").format(target.sql_name)
    name, kind = sql.Identifier(column.name), type_name(column.type)
    if present is None:
        connection.execute(alter + sql.SQL("ADD COLUMN {} {}").format(name, kind))
    elif present == column.type:
        return
    elif (present, column.type) in _WIDENS or _wider_numeric(present, column.type):
        connection.execute(alter + sql.SQL("ALTER COLUMN {} TYPE {}").format(name, kind))
    else:
        raise MillstreamError(
            f"{target.full_name}: the column {column.name!r} is {present} in the database and {column.type} in the view. Cast it"
            f" to {present}, give it another name, or build the view from the beginning:"
            f" `millstream views drop {target.full_name} --execute`."
        )


def _check_key(connection: Connection, target: Target) -> None:
    keys = connection.execute(
        "SELECT array_agg(a.attname::text ORDER BY k.position) FROM pg_index i,"
        " unnest(i.indkey) WITH ORDINALITY AS k(attnum, position), pg_attribute a, pg_class c, pg_namespace n"
        " WHERE c.oid = i.indrelid AND n.oid = c.relnamespace AND n.nspname = %s AND c.relname = %s AND i.indisunique"
        " AND k.position <= i.indnkeyatts AND i.indpred IS NULL AND a.attrelid = c.oid AND a.attnum = k.attnum"
        " GROUP BY i.indexrelid",
        [target.schema, target.table],
    ).fetchall()
    if not any(set(row[0]) == set(target.key) for row in keys):
        raise MillstreamError(
            f"{target.full_name} exists with the key {' or '.join(str(row[0]) for row in keys) or '(none)'}, the view's is"
            f" {list(target.key)}. Give the view another name, or build it from the beginning:"
            f" `millstream views drop {target.full_name} --execute`."
        )


def _wider_numeric(present: str, wanted: str) -> bool:
    """numeric(p,s) to one with as many digits before and behind the point, or more."""
    old, new = _digits(present), _digits(wanted)
    return old is not None and new is not None and new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]


def _digits(kind: str) -> tuple[int, int] | None:
    if not kind.startswith("numeric("):
        return None
    precision, scale = kind.removeprefix("numeric(").removesuffix(")").split(",")
    return int(precision), int(scale)
