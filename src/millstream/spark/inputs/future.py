"""Event times ahead of the log: one event with a time far in the future would move the watermark past everything after it.

An event time may lie `Topic.future` beyond the log's own time of the message (clocks differ). What lies further ahead is no event
of the topic: every query leaves it out before the watermark sees it, and it becomes a dead letter.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millstream.app.inputs import Topic
from millstream.event.duration import spark_interval
from millstream.spark.provenance import ORIGIN


def without_future(events: DataFrame, topic: Topic) -> DataFrame:
    """Return the topic's events without those whose event time is too far ahead of the log's."""
    if topic.event_time is None or topic.future is None:
        return events
    return events.where(~_is_future(topic, F.col(f"`{topic.event_time}`"), F.col(f"{ORIGIN}.timestamp")))


def reason_future(topic: Topic, time: Column, received: Column) -> Column:
    """Return why an event is no event of the topic, or null when its time is not too far ahead.

    time: its event time.   received: the log's time of its message.
    """
    if topic.future is None:
        return F.lit(None).cast("string")
    said = F.concat(
        F.lit(f"field {topic.event_time!r}: the time "),
        time.cast("string"),
        F.lit(f" is more than {topic.future} ahead of the log's, "),
        received.cast("string"),
    )
    return F.when(_is_future(topic, time, received), said)


def _is_future(topic: Topic, time: Column, received: Column) -> Column:
    assert topic.future is not None
    return time > received + F.expr(f"INTERVAL {spark_interval(topic.future)}")
