"""An application's functions on rows in memory: plain, bounded Spark, no broker."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.event import Event, fields
from millstream.settings import MillstreamError, Settings
from millstream.spark import provenance
from millstream.spark.analysis import called
from millstream.spark.inputs.json import schema
from millstream.spark.operators.windows import flatten
from millstream.spark.provenance import ORIGIN
from millstream.spark.session import session

Rows = Sequence[Event] | Sequence[Mapping[str, Any]] | type[Event]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
# A few rows: planning is what costs, so no more partitions than one, and no plans made again while they run.
_SMALL = {
    "spark.master": "local[1]",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
_folders: list[tempfile.TemporaryDirectory[str]] = []  # kept until the process ends, when they remove themselves


def run(function: Callable[..., DataFrame], /, *inputs: Rows, **named: Rows) -> list[dict[str, Any]]:
    """Run an application's function on rows in memory and return its rows as dicts.

        ms.testing.run(delay_by_hour, departures=[Departure(origin="JFK", …), …])

    inputs: in the order of the function's parameters, or by their names. A topic's are events (or their class, for none at
    all), a table's are dicts. Event frames name their cause too, in the column `_origin`: the parameter's name, partition 0, the
    index as offset.
    Windows come flattened as in a view (`hour` as hour_start and hour_end), `_origin` is left out, times are in UTC. The order
    of the rows is Spark's. There is no watermark: no event is late.

    Raises MillstreamError when an input is missing or mixed, or Spark refuses the function.
    """
    parameters = list(signature(function).parameters)
    given = {**dict(zip(parameters, inputs, strict=False)), **named}
    if len(inputs) > len(parameters) or given.keys() != set(parameters):
        raise MillstreamError(
            f"{function.__name__} takes {', '.join(parameters)}; got {', '.join([*map(str, given)]) or 'nothing'}"
            f"{' and more' if len(inputs) > len(parameters) else ''}. Give rows for each parameter."
        )
    spark = spark_session()
    frames = [frame(spark, name, given[name]) for name in parameters]
    result = flatten(called(function.__name__, function, *frames))
    shown: list[dict[str, Any]] = result.drop(ORIGIN).toArrow().to_pylist()
    return shown


def spark_session() -> SparkSession:
    """Return the process's Spark session; a small one is started when there is none."""
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    folder = tempfile.TemporaryDirectory(prefix="millstream-testing-")
    _folders.append(folder)
    return session("millstream-testing", Settings.embedded(Path(folder.name)), connector=False, more=_SMALL)


def frame(spark: SparkSession, name: str, rows: Rows) -> DataFrame:
    """Return rows as a frame: of events with `_origin`, of dicts with the columns that they have."""
    if isinstance(rows, type):
        return _events(spark, name, rows, [])
    rows = list(rows)  # type: ignore[assignment]
    kinds = {type(row) for row in rows}
    if len(kinds) == 1 and issubclass(kind := kinds.pop(), Event):
        return _events(spark, name, kind, rows)  # type: ignore[arg-type]
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(key for row in rows for key in row)  # type: ignore[union-attr]
        return spark.createDataFrame(pa.Table.from_pylist([{n: row.get(n) for n in names} for row in rows]))  # type: ignore[union-attr]
    raise MillstreamError(
        f"{name}: expected events of one class, or dicts, got {', '.join(sorted(k.__name__ for k in kinds)) or 'no rows'}."
        " For no events, give their class."
    )


def _events(spark: SparkSession, topic: str, kind: type[Event], rows: Sequence[Event]) -> DataFrame:
    columns = {f.name: [_value(getattr(row, f.name), f.kind) for row in rows] for f in fields(kind)}
    columns[ORIGIN] = [
        {"topic": topic, "partition": 0, "offset": i, "timestamp": _EPOCH + timedelta(milliseconds=i)}
        for i in range(len(rows))
    ]
    types = schema(kind).add(ORIGIN, provenance.TYPE, False)
    table = pa.table(columns, schema=to_arrow_schema(types, timezone="UTC"))
    return spark.createDataFrame(table, schema=types)


def _value(value: Any, kind: str) -> Any:
    return msgspec.json.encode(value).decode() if kind == "json" and value is not None else value
