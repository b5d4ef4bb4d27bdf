"""A topic as a stream of its events: read, decoded by its format, without times far ahead, with the declared watermark."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pyspark.sql import DataFrame

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.event.duration import spark_interval
from millstream.spark.analysis import as_input
from millstream.spark.context import Context
from millstream.spark.inputs.future import without_future
from millstream.spark.kafka import read_stream


def open(context: Context, query: Query, topic: Topic) -> DataFrame:
    """Return the topic's events as a stream: a column per field, and their cause (`provenance`)."""
    messages = read_stream(context.spark, context.kafka, [topic.name], realtime=query.realtime)
    return as_input(with_watermark(events(messages, topic), topic))


def events(messages: DataFrame, topic: Topic) -> DataFrame:
    """Return the events in messages of the topic (the Kafka connector's columns), streaming or not, without a watermark."""
    decoded = import_module(topic.format.spark).events(messages, topic)
    return without_future(cast(DataFrame, decoded), topic)


def with_watermark(frame: DataFrame, topic: Topic) -> DataFrame:
    """Return the topic's events with their event time declared to Spark: older ones than the newest by more than the topic's
    lateness no longer count, and the state of windows that end before is dropped.
    """
    return frame.withWatermark(topic.event_time, spark_interval(topic.lateness)) if topic.event_time else frame
