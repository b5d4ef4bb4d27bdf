"""Reading views from PostgreSQL: which there are, and their rows, the newest windows first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from psycopg import sql

from millstream.postgresql.connect import CONNECT_S, Connection, connect
from millstream.settings import MillstreamError, Settings
from millstream.stores.checkpoints import exists, owners
from millstream.stores.store import Rows, Stored

if TYPE_CHECKING:
    import pyarrow as pa

STATEMENT_S = 30.0  # how long the database may take: counting a huge view must not run for ever
TIMES = (1082, 1114, 1184)  # PostgreSQL's type oids (pg_type.dat) of date and timestamps

# The key is a unique constraint, or a primary key in a table that somebody else made.
_KEY = """
select a.attname::text, a.atttypid::int
from (
    select i.indrelid, i.indkey from pg_index i join pg_class c on c.oid = i.indrelid
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s and i.indisunique and i.indpred is null
    order by i.indisprimary desc, i.indexrelid limit 1
) i, unnest(i.indkey) with ordinality k(number, place)
join pg_attribute a on a.attnum = k.number
where a.attrelid = i.indrelid order by k.place
"""
_COLUMNS = """
select a.attname::text from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_TABLES = (
    "select schemaname::text, tablename::text from pg_tables where schemaname = any(%s)"
    " and schemaname <> 'millstream' order by 1, 2"
)


def read(
    settings: Settings, app: str, name: str, *, limit: int | None = None, where: Mapping[str, object] | None = None
) -> Rows:
    """Return the rows of a view, newest first, all of them or at most `limit`.

    where: the values that columns must have; None for no value.

    settings.postgres: the connection string of the store. The result is held in memory: give a limit where a view may be large.
    Raises MillstreamError when there is no such view, or the store does not answer.
    """
    if not settings.postgres:
        raise MillstreamError(
            f"the view {app}.{name} cannot be read: no store of views is known (postgres in millstream.toml,"
            " MILLSTREAM_POSTGRES), and no application runs in the data folder."
        )
    with connect(settings.postgres, autocommit=True, options="-c timezone=UTC") as connection:
        return rows(connection, app, name, limit=limit, where=where)


def rows(
    connection: Connection,
    app: str,
    name: str,
    *,
    limit: int | None = None,
    where: Mapping[str, object] | None = None,
) -> Rows:
    """Do the same over a connection of the caller's."""
    if not exists(connection, app, name):
        there = ", ".join(stored.name for stored in _stored(connection, app)) or "none yet"
        raise MillstreamError(f"there is no view {app}.{name}; the application {app!r} has {there}.")
    keys = key(connection, app, name)
    wanted = dict(where or {})
    query = sql.SQL("select * from {}{}{}{}").format(
        sql.Identifier(app, name),
        _where(connection, app, name, wanted),
        order(keys),
        sql.SQL(" limit {}").format(sql.Literal(limit)) if limit is not None else sql.SQL(""),
    )
    try:
        cursor = connection.execute(query, [value for value in wanted.values() if value is not None])
    except psycopg.Error as error:
        raise MillstreamError(f"the view {app}.{name} cannot be read: {str(error).strip()}") from error
    described, values = list(cursor.description or ()), cursor.fetchall()
    return Rows(
        tuple(column.name for column in described),
        values,
        tuple(column for column, _ in keys),
        partial(_arrow, described, values),
    )


@dataclass(frozen=True)
class Head:
    """The first rows of a view, newest first.

    columns: names and type oids.   total: how many rows, counted to the bound that was given.
    """

    columns: list[tuple[str, int]]
    rows: list[tuple[Any, ...]]
    total: int


def head(connection: Connection, app: str, name: str, *, limit: int, count_to: int) -> Head | None:
    """Return at most `limit` rows of a view, and how many it has, counted to `count_to`; None when there is no such table."""
    if not exists(connection, app, name):
        return None
    table = sql.Identifier(app, name)
    query = sql.SQL("select * from {}{} limit {}")
    cursor = connection.execute(query.format(table, order(key(connection, app, name)), sql.Literal(limit)))
    rows = cursor.fetchall()
    total = len(rows)
    if total == limit:
        counting = sql.SQL("select count(*) from (select from {} limit {}) as counted")
        [(total,)] = connection.execute(counting.format(table, sql.Literal(count_to))).fetchall()
    return Head([(c.name, c.type_code) for c in cursor.description or ()], rows, total)


def tables(
    settings: Settings, app: str | None = None, *, count: bool = False, connect_s: int = CONNECT_S
) -> list[Stored]:
    """Return the tables in the schema of an application, or of each that has ever written a view, and who keeps them.

    count: count their rows, too.   connect_s: how long the server may take to answer.
    """
    more = {"statement_timeout_s": STATEMENT_S, "connect_timeout": connect_s, "options": "-c timezone=UTC"}
    with connect(settings.postgres, autocommit=True, **more) as connection:  # type: ignore[arg-type]
        try:
            found = _stored(connection, app)
            return [_counted(connection, one) for one in found] if count else found
        except psycopg.Error as error:
            raise MillstreamError(f"the views cannot be read: {str(error).strip()}") from error


def key(connection: Connection, app: str, name: str) -> list[tuple[str, int]]:
    """Return the columns that name a row of a view, each with its type's oid."""
    return [(column, oid) for column, oid in connection.execute(_KEY, [app, name])]


def order(keys: Sequence[tuple[str, int]]) -> sql.Composable:
    """Return " order by …" for a key: the newest windows or times first, then the other columns in their order."""
    if not keys:
        return sql.SQL("")
    times = [column for column, oid in keys if oid in TIMES]
    starts = [c for c in times if c.endswith("_start") and c.removesuffix("_start") + "_end" in times]
    newest = (starts or times)[:1]
    skipped = {newest[0], newest[0].removesuffix("_start") + "_end"} if newest else set()
    parts = [sql.SQL("{} desc").format(sql.Identifier(column)) for column in newest]
    parts += [sql.SQL("{}").format(sql.Identifier(column)) for column, _ in keys if column not in skipped]
    return sql.SQL(" order by ") + sql.SQL(", ").join(parts)


def _where(connection: Connection, app: str, name: str, wanted: Mapping[str, object]) -> sql.Composable:
    """Return " where …" for the values that columns must have, as parameters. Raises MillstreamError naming the columns."""
    if not wanted:
        return sql.SQL("")
    columns = [column for (column,) in connection.execute(_COLUMNS, [app, name])]
    for column in wanted:
        if column not in columns:
            raise MillstreamError(f"the view {app}.{name} has no column {column!r}; it has {', '.join(columns)}.")
    parts = [
        sql.SQL("{} is null" if value is None else "{} = %s").format(sql.Identifier(column))
        for column, value in wanted.items()
    ]
    return sql.SQL(" where ") + sql.SQL(" and ").join(parts)


def _stored(connection: Connection, app: str | None) -> list[Stored]:
    known = {(one.app, one.view): one for one in owners(connection, app)}
    schemas = [app] if app is not None else sorted({schema for schema, _ in known})
    return [
        Stored(schema, table, known.get((schema, table)))
        for schema, table in connection.execute(_TABLES, [schemas]).fetchall()
    ]


def _counted(connection: Connection, stored: Stored) -> Stored:
    query = sql.SQL("select count(*) from {}").format(sql.Identifier(stored.app, stored.name))
    [(number,)] = connection.execute(query).fetchall()
    return replace(stored, rows=number)


def _arrow(described: Sequence[psycopg.Column], values: Sequence[Sequence[Any]]) -> pa.Table:
    """The result as Arrow, each column in its own type also where it is empty or all null."""
    import pyarrow as pa

    columns = list(zip(*values, strict=True)) or [()] * len(described)
    return pa.Table.from_arrays(
        [
            pa.array(_plain(column.type_code, given), _type(column))
            for column, given in zip(described, columns, strict=True)
        ],
        [column.name for column in described],
    )


def _plain(oid: int, values: Sequence[Any]) -> Sequence[Any]:
    if oid in _JSON:
        return [None if v is None else msgspec.json.encode(v).decode() for v in values]
    return values if oid in _types() or oid == _NUMERIC else [None if v is None else str(v) for v in values]


_JSON = (114, 3802)
_NUMERIC = 1700


def _types() -> dict[int, pa.DataType]:
    """PostgreSQL's types (pg_type.dat) as Arrow's; numeric goes by its digits, JSON and all others are text."""
    import pyarrow as pa

    return {
        16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int16(), 23: pa.int32(), 25: pa.string(), 1043: pa.string(),
        700: pa.float32(), 701: pa.float64(), 1082: pa.date32(), 1083: pa.time64("us"),
        1114: pa.timestamp("us"), 1184: pa.timestamp("us", "UTC"),
    }  # fmt: skip


def _type(column: psycopg.Column) -> pa.DataType | None:
    import pyarrow as pa

    if column.type_code == _NUMERIC:
        digits = column.precision  # None: as many as each value has
        return pa.decimal128(digits, column.scale) if digits and digits <= 38 else None
    return _types().get(column.type_code, pa.string())
