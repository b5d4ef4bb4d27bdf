"""Dead letters: what could not be read as an event of its topic, kept once per message however many queries met it.

One query per application reads every declared topic and writes only the malformed messages; the other queries merely leave them
out. It reads all topics through one source, so that an application may gain and lose them (`positions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from importlib import import_module

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.names import DEAD_LETTERS, dead_letters
from millstream.spark import positions
from millstream.spark.context import Context
from millstream.spark.kafka import JSON_TIME, options, read_stream

EVERY = timedelta(seconds=1)
# A larger message is cut in its dead letter, which must fit into a message itself; its origin says where the whole is.
MAX_VALUE_BYTES = 256 * 1024


def start(context: Context, topics: Sequence[Topic]) -> StreamingQuery:
    """Start the query of dead letters over the topics."""
    names = [t.name for t in topics]
    where, aside = "the query of dead letters", context.aside(DEAD_LETTERS)
    positions.keep(context.kafka, context.checkpoint(DEAD_LETTERS), names, where, state=False, aside=aside)
    source = read_stream(context.spark, context.kafka, names)
    return (
        context.named(letters(source, topics), DEAD_LETTERS, "append", EVERY)
        .format("kafka")
        .options(**options(context.kafka))
        .option("topic", dead_letters(context.app))
        .start()
    )


def letters(source: DataFrame, topics: Sequence[Topic]) -> DataFrame:
    """Return the malformed messages as messages: key "<topic>-<partition>-<offset>", value a JSON object.

    Its fields: topic, partition, offset, reason, at (the log's time of the message), key and value as text, where "encoding" says
    base64 when the value is not UTF-8 (and "key_encoding" likewise), and "size" the value's whole length when it was cut.
    """
    value = F.substring("value", 1, MAX_VALUE_BYTES)
    body = F.struct(
        "topic",
        "partition",
        "offset",
        "reason",
        F.col("timestamp").alias("at"),
        _text(F.col("key")).alias("key"),
        _text(value).alias("value"),
        F.when(~F.is_valid_utf8(value.cast("string")), "base64").alias("encoding"),
        F.when(~F.is_valid_utf8(F.col("key").cast("string")), "base64").alias("key_encoding"),
        F.when(F.length("value") > MAX_VALUE_BYTES, F.length("value")).alias("size"),
    )
    return malformed(source, topics).select(
        F.concat_ws("-", "topic", "partition", "offset").cast("binary").alias("key"),
        F.to_json(body, {"timestampFormat": JSON_TIME}).cast("binary").alias("value"),
    )


def malformed(messages: DataFrame, topics: Sequence[Topic]) -> DataFrame:
    """Return the messages that are no events of their topic, each judged by its topic's format."""
    formats: dict[str, list[Topic]] = {}
    for topic in topics:
        formats.setdefault(topic.format.spark, []).append(topic)
    if len(formats) == 1:
        return _judged(messages, *formats.popitem())
    parts = [_judged(messages.where(F.col("topic").isin([t.name for t in of])), m, of) for m, of in formats.items()]
    return reduce(DataFrame.unionByName, parts)


def _judged(messages: DataFrame, module: str, topics: Sequence[Topic]) -> DataFrame:
    found: DataFrame = import_module(module).malformed(messages, topics)
    return found


def _text(column: Column) -> Column:
    text = column.cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column))
