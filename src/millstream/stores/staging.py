"""Rows in Arrow as PostgreSQL's COPY reads them: CSV that Arrow writes, but for lists, maps and structs, which become JSON."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from millstream.settings import MillstreamError
from millstream.stores.target import Column, Target

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000  # in one piece of CSV: what is in memory beside the batch itself
# Arrow quotes every text and no null: PostgreSQL's CSV reads an empty unquoted value as null.
OPTIONS = "FORMAT csv, NULL ''"


def pieces(rows: pa.Table, target: Target) -> Iterator[memoryview]:
    """Yield the rows as CSV, a bounded number of rows at a time. Raises MillstreamError for a text that no column can hold."""
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False)
    for batch in rows.to_batches(ROWS):
        columns = [_column(batch.column(i), column) for i, column in enumerate(target.columns)]
        out = pa.BufferOutputStream()
        csv.write_csv(pa.table(columns, [c.name for c in target.columns]), out, options)
        yield memoryview(out.getvalue())


def _column(array: pa.Array, column: Column) -> pa.Array:
    """The column in a type that Arrow writes as PostgreSQL reads it."""
    import pyarrow as pa
    from pyarrow import compute, types

    kind = array.type
    if types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if column.type == "jsonb":
        return pa.array([None if v is None else _json(v) for v in array.to_pylist()], pa.string())
    if column.type == "bytea":
        return pa.array([None if v is None else "\\x" + v.hex() for v in array.to_pylist()], pa.string())
    if types.is_timestamp(kind):
        # PostgreSQL's resolution is the microsecond. A moment is written in UTC: zones by name are not in CSV.
        return array.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
    if types.is_float16(kind):
        return array.cast(pa.float32())
    if types.is_null(kind):
        return array.cast(pa.string())
    if column.type == "text":
        array = array.cast(pa.large_string())
        if compute.any(compute.match_substring(array, "\0")).as_py():
            value = next(v for v in array.to_pylist() if v is not None and "\0" in v)
            raise MillstreamError(
                f"column {column.name!r}: PostgreSQL's text cannot hold the NUL character, which is in {value[:80]!r}."
                " Remove it (translate), or send the column as binary."
            )
    return array


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
