"""A topic as a stream of its events: read, decoded by its format, without times far ahead, with the declared watermark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.client.admin import start_offsets
from millstream.event.duration import spark_interval
from millstream.spark.analysis import WATERMARK, as_input
from millstream.spark.context import Context
from millstream.spark.inputs.future import without_future
from millstream.spark.kafka import read_stream
from millstream.spark.provenance import ORIGIN

# Spark's own watermark follows this far behind the newest event, which is never: event times end with the year 9999.
_NEVER = f"{10_000 * 366} days"


def open(context: Context, query: Query, topic: Topic) -> DataFrame:
    """Return the topic's events as a stream: a column per field, and their cause (`provenance`)."""
    messages = read_stream(context.spark, context.kafka, [topic.name], realtime=query.realtime)
    read = events(messages, topic)
    watermark = context.watermarks.get(query.name)
    if watermark is None or topic.event_time is None:
        return as_input(with_watermark(read, topic))
    partitions = sorted(number for _, number in start_offsets(context.kafka, [topic.name]))
    return as_input(by_partition(read, topic, watermark.watch(topic), partitions))


def events(messages: DataFrame, topic: Topic) -> DataFrame:
    """Return the events in messages of the topic (the Kafka connector's columns), streaming or not, without a watermark."""
    decoded = import_module(topic.format.spark).events(messages, topic)
    return without_future(cast(DataFrame, decoded), topic)


def by_partition(frame: DataFrame, topic: Topic, name: str, partitions: Sequence[int]) -> DataFrame:
    """Return the topic's events with their event time declared to Spark, whose watermark moves by `watermark.advance` alone.

    name: under which each progress report has the newest time of each partition of the batch, in epoch milliseconds.
    """
    assert topic.event_time
    time = F.col(f"`{topic.event_time}`")
    newest = [F.max(F.when(F.col(f"{ORIGIN}.partition") == p, F.unix_millis(time))).alias(str(p)) for p in partitions]
    return marked(frame.observe(name, *newest).withWatermark(topic.event_time, _NEVER), topic)


def marked(frame: DataFrame, topic: Topic) -> DataFrame:
    """Return the frame with its event time known as such to Spark's operators, with the topic's lateness; nothing moves by it."""
    if topic.event_time is None:
        return frame
    metadata = {**frame.schema[topic.event_time].metadata, WATERMARK: topic.lateness // timedelta(milliseconds=1)}
    time = F.col(f"`{topic.event_time}`").alias(topic.event_time, metadata=metadata)
    return frame.withColumn(topic.event_time, time)


def with_watermark(frame: DataFrame, topic: Topic) -> DataFrame:
    """Return the topic's events with their event time declared to Spark: older ones than the newest by more than the topic's
    lateness no longer count, and the state of windows that end before is dropped.
    """
    return frame.withWatermark(topic.event_time, spark_interval(topic.lateness)) if topic.event_time else frame
