"""Windows over event time: what users group by, and how results carry them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.event import duration
from millstream.event.duration import spark_interval
from millstream.settings import MillstreamError
from millstream.spark.provenance import ORIGIN


def tumbling(column: str | Column, size: str | timedelta) -> Column:
    """Return the window of `size` that a time falls into: windows follow each other without gap or overlap.

    The window starts at its start and ends before its end: [start, end). Starts are multiples of `size` since 1970-01-01T00:00Z,
    so hours and days are those of UTC. Group by it and name it: `ms.tumbling("departed_at", "1 hour").alias("hour")`;
    a view then has the columns hour_start and hour_end. Raises MillstreamError for a size that is no positive duration.
    """
    return F.window(column, spark_interval(duration(size)))


def is_window(kind: T.DataType) -> bool:
    """Tell whether a column's type is that of a window: a struct of a start and an end."""
    return (
        isinstance(kind, T.StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(f.dataType, T.TimestampType) for f in kind.fields)
    )


def flatten(frame: DataFrame) -> DataFrame:
    """Return the frame with each window column replaced by <name>_start and <name>_end."""
    return frame.select(
        *[
            c
            for f in frame.schema.fields
            for c in (
                [F.col(f"`{f.name}`.start").alias(f"{f.name}_start"), F.col(f"`{f.name}`.end").alias(f"{f.name}_end")]
                if is_window(f.dataType)
                else [F.col(f"`{f.name}`")]
            )
        ]
    )


def flat_key(key: Sequence[str], schema: T.StructType, where: str) -> tuple[str, ...]:
    """Return the flattened columns that identify a row: of a window, its start.

    Raises MillstreamError, beginning with `where`, when the function's result lacks a key column.
    """
    for name in key:
        if name not in schema.names:
            raise MillstreamError(
                f"{where}: the key names {name!r}, which the function's result lacks;"
                f" it has {', '.join(n for n in schema.names if n != ORIGIN)}."
                " Give the column that name with .alias(…), or change the key."
            )
    return tuple(f"{name}_start" if is_window(schema[name].dataType) else name for name in key)
