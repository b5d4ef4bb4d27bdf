"""Windows over event time: what users group by, and how results carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal
from zoneinfo import available_timezones

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.event import duration
from millstream.event.duration import spark_interval
from millstream.settings import MillstreamError
from millstream.spark.analysis import WATERMARK
from millstream.spark.provenance import ORIGIN

_SAME_START = "millstream.same_start"  # metadata of a window whose start alone does not tell it from others
MAX_STEPS = 1000  # of a cumulating window: so many rows may one event become
_US = timedelta(microseconds=1)
_LENGTHS = {"day": "1 DAY", "week": "7 DAY", "month": "1 MONTH", "quarter": "3 MONTH", "year": "1 YEAR"}


def tumbling(time: str | Column, size: str | timedelta, *, start: str | timedelta | None = None) -> Column:
    """Return the window of `size` that a time falls into: windows follow each other without gap or overlap.

    The window has its start and not its end: [start, end). Starts are multiples of `size` since 1970-01-01T00:00Z, so hours and
    days are those of UTC; `start` moves them all: `size="1 day", start="6 hours"` are days that begin at 06:00 UTC. Days and
    months of a time zone are `ms.calendar`. Group by it and name it: `ms.tumbling("departed_at", "1 hour").alias("hour")`;
    a view then has the columns hour_start and hour_end. Raises MillstreamError for a size that is no positive duration.
    """
    return F.window(time, spark_interval(duration(size)), startTime=_start(start))


def hopping(
    time: str | Column, size: str | timedelta, every: str | timedelta, *, start: str | timedelta | None = None
) -> Column:
    """Return the windows of `size`, one of which begins each `every`, that a time falls into: a row counts in each of them.

    Each is [start, end); starts are multiples of `every` since 1970-01-01T00:00Z, moved by `start`. Where `size` is no multiple
    of `every`, times fall into one window more or less. Raises MillstreamError when `every` is longer than `size`: times between
    the windows would be lost.
    """
    length, step = duration(size), duration(every)
    if step > length:
        raise MillstreamError(
            f"hopping: a window of {size} each {every} leaves out what lies between. Give every={size!r} or less."
        )
    return F.window(time, spark_interval(length), spark_interval(step), _start(start))


def session(time: str | Column, gap: str | timedelta) -> Column:
    """Return the session that a time falls into: of equal keys, rows with no more than `gap` between one and the next.

    It is [first time, last time + gap). A gap that is met exactly still joins: of 10:00 and 10:05 with a gap of five minutes one
    session is made, as in Kafka Streams and Flink. Sessions are written when they are over, once: Spark has no changes of them.
    """
    return F.session_window(time, spark_interval(duration(gap)))


def cumulating(
    frame: DataFrame,
    time: str,
    size: str | timedelta,
    step: str | timedelta,
    *,
    start: str | timedelta | None = None,
    name: str = "window",
) -> DataFrame:
    """Return the frame with a row for each cumulating window that a time falls into, in the column `name`.

        clicks.transform(ms.cumulating, "at", "1 day", "1 hour").groupBy("page", "window").count()

    They all begin where a tumbling window of `size` begins and end one `step` after the other up to its end: the day until one
    o'clock, until two, … Each is [start, end). Raises MillstreamError when `size` is no multiple of `step`.
    """
    length, each = duration(size), duration(step)
    if length % each:
        raise MillstreamError(f"cumulating: the size must be a multiple of the step, got {size} and {step}.")
    steps, each_us = length // each, each // _US
    if steps > MAX_STEPS:
        raise MillstreamError(f"cumulating: at most {MAX_STEPS} steps, each a row per event; got {steps}.")
    length_us, offset_us = length // _US, duration(start) // _US if start is not None else 0
    since = F.pmod(F.unix_micros(F.col(f"`{time}`")) - F.lit(offset_us), F.lit(length_us))
    first = F.unix_micros(F.col(f"`{time}`")) - since
    counts = F.sequence(F.floor(since / F.lit(each_us)) + 1, F.lit(steps).cast("bigint"))
    ends = F.transform(counts, lambda n: _span(F.timestamp_micros(first), F.timestamp_micros(first + n * each_us)))
    return _with_window(frame, time, F.explode(ends), name, {_SAME_START: True})


def calendar(
    frame: DataFrame,
    time: str,
    unit: Literal["day", "week", "month", "quarter", "year"],
    zone: str,
    *,
    name: str | None = None,
) -> DataFrame:
    """Return the frame with the calendar's window that a time falls into, in a time zone, in the column `name` (or `unit`).

        departures.transform(ms.calendar, "departed_at", "month", "Europe/Oslo").groupBy("origin", "month").count()

    It is [start, end): from the first moment of the day, week (of Monday, ISO 8601), month, quarter or year there to the first of
    the next. A day has 23 or 25 hours where clocks change; where midnight does not exist, it begins with the first time there.
    zone: a name of the IANA time zone database. Raises MillstreamError for another unit or zone.
    """
    if unit not in _LENGTHS:
        raise MillstreamError(f"calendar: expected one of {', '.join(_LENGTHS)}, got {unit!r}.")
    if zone not in available_timezones():
        raise MillstreamError(f'calendar: expected a time zone such as "Europe/Oslo" or "UTC", got {zone!r}.')
    first = F.date_trunc(unit, F.from_utc_timestamp(F.col(f"`{time}`"), zone))
    last = first + F.expr(f"INTERVAL {_LENGTHS[unit]}")
    return _with_window(
        frame, time, _span(F.to_utc_timestamp(first, zone), F.to_utc_timestamp(last, zone)), name or unit
    )


def _with_window(
    frame: DataFrame, time: str, window: Column, name: str, more: Mapping[str, bool] | None = None
) -> DataFrame:
    """Add a window's column that closes as Spark's own do, when `time` is an event time. more: metadata of the column."""
    if time not in frame.columns or name in frame.columns:
        there = ", ".join(c for c in frame.columns if c != ORIGIN)
        raise MillstreamError(
            f"the window {name!r} of {time!r}: the frame must have the time and not yet the window; it has {there}."
        )
    metadata = {k: v for k, v in frame.schema[time].metadata.items() if k == WATERMARK} | dict(more or {})
    added = frame.select("*", window.alias(name))
    return added.withColumn(name, F.col(f"`{name}`").alias(name, metadata=metadata))


def _span(start: Column, end: Column) -> Column:
    return F.struct(start.alias("start"), end.alias("end"))


def _start(start: str | timedelta | None) -> str | None:
    return None if start is None else spark_interval(duration(start))


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
    """Return the flattened columns that identify a row: of a window its start, of a cumulating one its end too.

    Raises MillstreamError, beginning with `where`, when the function's result lacks a key column.
    """
    for name in key:
        if name not in schema.names:
            raise MillstreamError(
                f"{where}: the key names {name!r}, which the function's result lacks;"
                f" it has {', '.join(n for n in schema.names if n != ORIGIN)}."
                " Give the column that name with .alias(…), or change the key."
            )
    return tuple(part for name in key for part in _identifying(schema[name]))


def _identifying(field: T.StructField) -> list[str]:
    if not is_window(field.dataType):
        return [field.name]
    return [f"{field.name}_{end}" for end in (("start", "end") if field.metadata.get(_SAME_START) else ("start",))]
