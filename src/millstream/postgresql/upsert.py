"""Batches of rows into a table, each exactly once: the rows and the number of their batch are one transaction.

The table `millstream.checkpoints` holds the last batch of each query. A batch that is there already (Spark repeats one after a
crash) is skipped; a new `query_id` (the query's checkpoint was deleted, so it starts from the beginning) empties the table first.

Keys may hold nulls, because grouping by a nullable column gives a null group: so the key is a unique constraint that treats
nulls as equal (NULLS NOT DISTINCT, PostgreSQL 15), not a primary key.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import psycopg
from psycopg import sql

from millstream.postgresql.connect import Connection, identifiers
from millstream.settings import MillstreamError

if TYPE_CHECKING:
    import pyarrow

MAX_NAME = 63  # bytes; PostgreSQL cuts longer names silently
MAX_COLUMNS = 1600  # PostgreSQL's own limit

_log = logging.getLogger(__name__)

# A type may become one that holds all its values; anything else would change what readers see.
_WIDENS = {
    ("smallint", "integer"),
    ("smallint", "bigint"),
    ("integer", "bigint"),
    ("real", "double precision"),
    ("date", "timestamp with time zone"),
}


@dataclass(frozen=True)
class Column:
    """A column: its name and its type as PostgreSQL prints it, for example "timestamp with time zone" or "numeric(10,2)"."""

    name: str
    type: str


@dataclass(frozen=True)
class Target:
    """The table of a view. key: the columns whose values name a row."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        for name in (self.schema, self.table, *names):
            if not 0 < len(name.encode()) <= MAX_NAME or "\0" in name:
                raise MillstreamError(f"{self.full_name}: expected names of 1 to {MAX_NAME} bytes, got {name!r}.")
        if len(set(names)) != len(names):
            raise MillstreamError(
                f"{self.full_name}: the column {_twice(names)!r} is there twice; rename one (.alias)."
            )
        if len(names) > MAX_COLUMNS:
            raise MillstreamError(f"{self.full_name}: expected at most {MAX_COLUMNS} columns, got {len(names)}.")
        if not self.key:
            raise MillstreamError(f"{self.full_name} has no key: name the columns that identify a row.")
        for name in self.key:
            if name not in names:
                raise MillstreamError(
                    f"{self.full_name}: the key names the column {name!r}, which the rows lack; they have {', '.join(names)}."
                )

    @classmethod
    def of(cls, schema: str, table: str, rows: pyarrow.Schema, key: Sequence[str]) -> Target:
        """Return the table for rows of an Arrow schema. Raises MillstreamError for a type that no column can hold."""
        columns = tuple(Column(field.name, column_type(field.type, f"{schema}.{table}.{field.name}")) for field in rows)
        return cls(schema, table, columns, tuple(key))

    @property
    def full_name(self) -> str:
        """schema.table, for messages."""
        return f"{self.schema}.{self.table}"

    @property
    def sql_name(self) -> sql.Identifier:
        """The quoted name for queries."""
        return sql.Identifier(self.schema, self.table)


def column_type(kind: pyarrow.DataType, where: str) -> str:
    """Return the PostgreSQL type for an Arrow type; lists, maps and structs become jsonb.

    Raises MillstreamError for durations and other types without a counterpart.
    """
    from pyarrow import types

    if types.is_dictionary(kind):
        return column_type(kind.value_type, where)
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    for test, name in (
        (types.is_boolean, "boolean"),
        (lambda t: types.is_int8(t) or types.is_int16(t) or types.is_uint8(t), "smallint"),
        (lambda t: types.is_int32(t) or types.is_uint16(t), "integer"),
        (lambda t: types.is_int64(t) or types.is_uint32(t), "bigint"),
        (types.is_uint64, "numeric(20,0)"),
        (types.is_float16, "real"),
        (types.is_float32, "real"),
        (types.is_float64, "double precision"),
        (
            lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t) or types.is_null(t),
            "text",
        ),
        (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_fixed_size_binary(t), "bytea"),
        (types.is_date, "date"),
        (types.is_time, "time without time zone"),
        (types.is_nested, "jsonb"),
    ):
        if test(kind):
            return name
    raise MillstreamError(f"{where} has the type {kind}, which PostgreSQL has no column type for. Cast it.")


def ensure_checkpoints(connection: Connection) -> None:
    """Create the table of checkpoints unless it is there."""
    with connection.transaction():
        _lock(connection, "millstream.checkpoints")
        connection.execute("CREATE SCHEMA IF NOT EXISTS millstream")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS millstream.checkpoints (app text, query text, query_id uuid NOT NULL,"
            " batch_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (app, query))"
        )


def ensure(connection: Connection, target: Target) -> None:
    """Create the target's table, or bring it up to the target: new columns are added, types widened, dropped ones left.

    Raises MillstreamError when a column changed its type otherwise, when the key changed, or when the role may not do it.
    """
    try:
        ensure_checkpoints(connection)
        with connection.transaction():
            _lock(connection, target.full_name)
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


def apply(
    connection: Connection,
    target: Target,
    rows: pyarrow.RecordBatch | pyarrow.Table,
    *,
    app: str,
    query: str,
    query_id: str | UUID,
    batch_id: int,
    whole: bool = False,
) -> int | None:
    """Write a batch into the target's table, once. Returns the number of rows sent, or None when the batch was there already.

    Rows whose key is in the table replace what is there. When a key comes several times, the last row of the batch counts.
    Columns of the table that the rows lack keep their values. Call `ensure` first, once per process and schema.
    whole: the rows are all that the table is to hold: others are removed, and equal ones are left alone.
    Raises MillstreamError for values that PostgreSQL cannot hold (a NUL character in a text, a number that is too large).
    """
    names = [column.name for column in target.columns]
    if rows.schema.names != names:
        raise MillstreamError(f"{target.full_name}: expected the columns {names}, got {rows.schema.names}.")
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise ValueError(
            "expected a connection without an open transaction: the batch must be committed here, as a whole"
        )
    with connection.transaction():
        known = _checkpoint(connection, app, query)
        if known is not None and str(known[0]) == str(query_id):
            if batch_id <= known[1]:
                return None
        elif known is not None:
            # DELETE, not TRUNCATE: readers see the old rows until this batch is committed, and are never kept waiting.
            connection.execute(sql.SQL("DELETE FROM {}").format(target.sql_name))
            _log.info("%s is emptied: query %s starts from the beginning", target.full_name, query)
        if rows.num_rows or whole:
            _write(connection, target, rows, whole)
        connection.execute(
            "INSERT INTO millstream.checkpoints (app, query, query_id, batch_id, at) VALUES (%s, %s, %s, %s, now())"
            " ON CONFLICT (app, query) DO UPDATE SET (query_id, batch_id, at) ="
            " (EXCLUDED.query_id, EXCLUDED.batch_id, EXCLUDED.at)",
            [app, query, str(query_id), batch_id],
        )
    return int(rows.num_rows)


def checkpoint(connection: Connection, app: str, query: str) -> tuple[UUID, int] | None:
    """Return the (query_id, batch_id) that a query wrote last, None when it never did."""
    row = connection.execute(
        "SELECT query_id, batch_id FROM millstream.checkpoints WHERE app = %s AND query = %s", [app, query]
    ).fetchone()
    return (row[0], row[1]) if row else None


def _checkpoint(connection: Connection, app: str, query: str) -> tuple[UUID, int] | None:
    """The same, alone: a second process with the same query (an old one that is not dead yet) waits for our commit."""
    _lock(connection, f"{app}/{query}")
    return checkpoint(connection, app, query)


def _write(connection: Connection, target: Target, rows: pyarrow.RecordBatch | pyarrow.Table, whole: bool) -> None:
    staging = _staging(connection, target)
    columns = [c.name for c in target.columns]
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(staging, identifiers(columns))
    try:
        with connection.cursor().copy(copy) as writer:
            for batch in rows.to_batches() if hasattr(rows, "to_batches") else [rows]:
                values = [_python_values(batch.column(i), column) for i, column in enumerate(target.columns)]
                for row in zip(*values, strict=True):
                    writer.write_row(row)
        changed = [name for name in columns if name not in target.key]
        action: sql.Composable = sql.SQL("NOTHING")
        if changed:
            action = sql.SQL("UPDATE SET {}").format(
                sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed)
            )
        if whole:
            _remove_others(connection, target, staging)
        if whole and changed:
            action += sql.SQL(" WHERE ({old}) IS DISTINCT FROM ({new})").format(
                old=sql.SQL(", ").join(sql.Identifier(target.schema, target.table, name) for name in changed),
                new=sql.SQL(", ").join(sql.Identifier("excluded", name) for name in changed),
            )
        connection.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {staging}"
                " ORDER BY {key}, _position DESC ON CONFLICT ({key}) DO {action}"
            ).format(
                table=target.sql_name,
                columns=identifiers(columns),
                key=identifiers(target.key),
                staging=staging,
                action=action,
            )
        )
        connection.execute(sql.SQL("TRUNCATE {}").format(staging))
    except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
        said = error.diag.message_primary or str(error)
        context = f" ({error.diag.context})" if error.diag.context else ""
        raise MillstreamError(f"{target.full_name} cannot hold a row: {said}{context}.") from error


def _remove_others(connection: Connection, target: Target, staging: sql.Identifier) -> None:
    """Remove the rows whose key is not staged. One with a null in its key counts as such, and is inserted again."""
    same = sql.SQL(" AND ").join(sql.SQL("s.{0} = t.{0}").format(sql.Identifier(name)) for name in target.key)
    connection.execute(
        sql.SQL("DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT FROM {staging} AS s WHERE {same})").format(
            table=target.sql_name, staging=staging, same=same
        )
    )


def _staging(connection: Connection, target: Target) -> sql.Identifier:
    """The session's temporary table with the target's columns, emptied; made once per session and set of columns."""
    digest = hashlib.sha256(repr(target).encode()).hexdigest()[:16]
    name = sql.Identifier(f"millstream_{digest}")
    columns = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(c.name), _type(c.type)) for c in target.columns)
    connection.execute(
        sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}, _position bigint GENERATED ALWAYS AS IDENTITY)").format(
            name, columns
        )
    )
    return name


def _python_values(array: pyarrow.Array, column: Column) -> Iterable[object]:
    """The column's values as psycopg writes them into a COPY."""
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if types.is_timestamp(kind) and kind.unit == "ns":
        # PostgreSQL's resolution is the microsecond, and so is Python's.
        array = array.cast(pa.timestamp("us", kind.tz), safe=False)
    elif types.is_float16(kind):
        array = array.cast(pa.float32())
    values: list[Any] = array.to_pylist()
    if column.type == "jsonb":
        return [None if v is None else _json(v) for v in values]
    if column.type == "text":
        for value in values:
            if value is not None and "\0" in value:
                raise MillstreamError(
                    f"column {column.name!r}: PostgreSQL's text cannot hold the NUL character, which is in {value[:80]!r}."
                    " Remove it (translate), or send the column as binary."
                )
    return values


def _json(value: object) -> str:
    text = msgspec.json.encode(_plain(value)).decode()
    if "\\u0000" in text:
        raise MillstreamError(f"PostgreSQL's jsonb cannot hold the NUL character, which is in {text[:80]}.")
    return text


def _plain(value: object) -> object:
    """Arrow's nested Python values as JSON has them: maps arrive as lists of pairs, decimals keep their digits as text."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(k): _plain(v) for k, v in value}
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value


def _present(connection: Connection, target: Target) -> dict[str, str]:
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped",
        [target.schema, target.table],
    ).fetchall()
    return {row[0]: row[1] for row in rows}


def _create(connection: Connection, target: Target) -> None:
    columns = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(c.name), _type(c.type)) for c in target.columns)
    connection.execute(
        sql.SQL("CREATE TABLE {} ({}, UNIQUE NULLS NOT DISTINCT ({}))").format(
            target.sql_name, columns, identifiers(target.key)
        )
    )


def _bring_up(connection: Connection, target: Target, column: Column, present: str | None) -> None:
    alter = sql.SQL("ALTER TABLE {} ").format(target.sql_name)
    name, kind = sql.Identifier(column.name), _type(column.type)
    if present is None:
        connection.execute(alter + sql.SQL("ADD COLUMN {} {}").format(name, kind))
    elif present == column.type:
        return
    elif (present, column.type) in _WIDENS or _wider_numeric(present, column.type):
        connection.execute(alter + sql.SQL("ALTER COLUMN {} TYPE {}").format(name, kind))
    else:
        raise MillstreamError(
            f"{target.full_name}: the column {column.name!r} is {present} in the database and {column.type} in the view. Cast it"
            f" to {present}, give it another name, or drop the table {target.full_name}"
            " and the query's checkpoint to build the view anew."
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
            f" {list(target.key)}. Give the view another name, or drop the table and the query's checkpoint."
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


def _type(kind: str) -> sql.SQL:
    """A type's name for a query. It comes from `column_type` or the programmer, and is checked to be no more than a type."""
    if not all(char.isalnum() or char in " (),_\"[].'" for char in kind):
        raise MillstreamError(f"expected the name of a PostgreSQL type, got {kind!r}.")
    return sql.SQL(kind)  # type: ignore[arg-type]


def _lock(connection: Connection, name: str) -> None:
    """Wait for others with the same name until their transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"millstream {name}"])


def _twice(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
