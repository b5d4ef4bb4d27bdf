"""Provenance: which events caused a row. The one place that knows the column, how causes merge, and what they look like.

Every frame of a topic has the column `_origin`: where its event stands in the log. Operators carry it as any other column. What
comes out of a query has none, one (a row of one event), or several of that name, at different places, after a join: then they
are merged into one ordered list of causes without repeats. Sides of an outer join without a row have none.

As text a cause is "<topic>-<partition>-<offset>", several are divided by ",". This is the value of the header `origin`. Where
one event can make several rows, a row's identity has a hash of its content too, behind a "#": "departures-0-17#9f86d081884c7d65".
A topic's name holds neither "," nor "#".
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millstream.settings import MillstreamError

ORIGIN = "_origin"
HEADER = "origin"
TYPE = T.StructType(
    [
        T.StructField("topic", T.StringType(), False),
        T.StructField("partition", T.IntegerType(), False),
        T.StructField("offset", T.LongType(), False),
        T.StructField("timestamp", T.TimestampType(), False),
    ]
)


def of_message() -> Column:
    """Return the cause of what is made of a message (the Kafka connector's columns): where it is, and the log's time of it."""
    return F.struct(*TYPE.names).alias(ORIGIN)


def columns(frame: DataFrame) -> list[str]:
    """Return the names of the columns that a user knows: all but the causes."""
    return [name for name in frame.columns if name != ORIGIN]


def has(frame: DataFrame) -> bool:
    """Tell whether the rows still name their causes."""
    return ORIGIN in frame.columns


def merged(frame: DataFrame, where: str) -> DataFrame:
    """Return the frame with its causes in one column: of one event the struct, of several an ordered list of them.

    Raises MillstreamError, beginning with `where`, when a column of that name holds something else.
    """
    fields = frame.schema.fields
    places = [i for i, field in enumerate(fields) if field.name == ORIGIN]
    for place in places:
        if not _is_cause(fields[place].dataType) and not _is_list(fields[place].dataType):
            raise MillstreamError(
                f"{where}: the column {ORIGIN!r} names the events that caused a row; the function made it"
                f" {fields[place].dataType.simpleString()}. Leave it as it comes, or give your column another name."
            )
    if len(places) < 2:
        return frame
    parts = [f"{ORIGIN}_{i}" for i in places]
    apart = frame.toDF(*[f"{ORIGIN}_{i}" if i in places else field.name for i, field in enumerate(fields)])
    lists = [_as_list(F.col(part), fields[i].dataType) for part, i in zip(parts, places, strict=True)]
    causes = F.array_sort(F.array_distinct(F.concat(*lists)))
    return apart.select(*[F.col(f"`{c}`") for c in apart.columns if c not in parts], causes.alias(ORIGIN))


def one_event(frame: DataFrame) -> bool:
    """Tell whether each row of a merged frame comes from one event."""
    return has(frame) and _is_cause(frame.schema[ORIGIN].dataType)


def text(frame: DataFrame) -> Column:
    """Return the causes of a merged frame's rows as text."""
    if one_event(frame):
        return _text(F.col(ORIGIN))
    return F.array_join(F.transform(F.col(ORIGIN), _text), ",")


def identity(frame: DataFrame, content: Column | None) -> Column:
    """Return what tells a row from all others: its causes and, where one event can make several rows, a hash of `content`."""
    causes = text(frame)
    return causes if content is None else F.concat(causes, F.lit("#"), F.lower(F.hex(F.xxhash64(content))))


def header(identity: Column) -> Column:
    """Return the headers of a message that bears the identity."""
    return F.array(F.struct(F.lit(HEADER).alias("key"), identity.cast("binary").alias("value")))


def _text(cause: Column) -> Column:
    return F.concat_ws("-", cause.topic, cause.partition, cause.offset)


def _is_cause(kind: T.DataType) -> bool:
    return isinstance(kind, T.StructType) and kind.names == TYPE.names


def _is_list(kind: T.DataType) -> bool:
    return isinstance(kind, T.ArrayType) and _is_cause(kind.elementType)


def _as_list(column: Column, kind: T.DataType) -> Column:
    none = F.array().cast(T.ArrayType(TYPE))
    return F.when(column.isNull(), none).otherwise(column if _is_list(kind) else F.array(column))
