"""The table of a view as a value: its columns' types in PostgreSQL for rows in Arrow, and its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from millstream.settings import MillstreamError

if TYPE_CHECKING:
    import pyarrow

MAX_NAME = 63  # bytes; PostgreSQL cuts longer names silently
MAX_COLUMNS = 1600  # PostgreSQL's own limit


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


def type_name(kind: str) -> sql.SQL:
    """Return a type's name for a query. It comes from `column_type` or the programmer; it must be no more than a type."""
    if not all(char.isalnum() or char in " (),_\"[].'" for char in kind):
        raise MillstreamError(f"expected the name of a PostgreSQL type, got {kind!r}.")
    return sql.SQL(kind)  # type: ignore[arg-type]


def _twice(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)
