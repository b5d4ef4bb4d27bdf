"""Dead letters: cut where they are large, each judged by its topic's format, times far ahead among them."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from millstream.app.inputs import Topic
from millstream.event import Event
from millstream.event.format import Json

pytestmark = pytest.mark.system

TYPES = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Small(Event):
    name: str


class Timed(Event):
    at: datetime


def messages(spark, topic, *values):
    rows = [
        (None, bytearray(v if isinstance(v, bytes) else v.encode()), topic, 0, i, NOW) for i, v in enumerate(values)
    ]
    return spark.createDataFrame(rows, TYPES)


def timed(at):
    return json.dumps({"at": at.isoformat()})


@pytest.mark.parametrize("future", [timedelta(minutes=5), None])
def test_times_ahead_of_the_log(spark, future):
    from millstream.spark.inputs.topic import events
    from millstream.spark.outputs.dead_letters import malformed

    topic = Topic("t", Timed, event_time="at", future=future)
    steps = [
        timedelta(days=-4000),
        timedelta(0),
        timedelta(minutes=5),
        timedelta(minutes=5, microseconds=1),
        timedelta(days=30000),
    ]
    given = messages(spark, "t", *[timed(NOW + step) for step in steps])
    ahead = [3, 4] if future else []
    assert sorted(r.offset for r in malformed(given, [topic]).collect()) == ahead
    assert sorted(r["_origin"].offset for r in events(given, topic).collect()) == [
        i for i in range(5) if i not in ahead
    ]
    if future:
        reasons = [r.reason for r in malformed(given, [topic]).orderBy("offset").collect()]
        assert reasons[0] == (
            "field 'at': the time 2026-01-01 00:05:00.000001 is more than 0:05:00 ahead of the log's, 2026-01-01 00:00:00"
        )


def test_each_topic_is_judged_by_its_format(spark, monkeypatch):
    import sys
    from types import ModuleType

    from pyspark.sql import functions as F

    from millstream.spark.outputs.dead_letters import malformed

    lines = ModuleType("lines")
    lines.malformed = lambda given, topics: given.where("value NOT LIKE 'ok%'").withColumn("reason", F.lit("no line"))
    monkeypatch.setitem(sys.modules, "lines", lines)

    class Lines(Json):
        name, spark = "lines", "lines"

    topics = [Topic("json", Small), Topic("text", Small, format=Lines())]
    given = messages(spark, "json", '{"name": "a"}', "ok").union(messages(spark, "text", '{"name": "a"}', "ok"))
    found = {(r.topic, r.offset): r.reason for r in malformed(given, topics).collect()}
    assert found == {("json", 1): "the value is not JSON", ("text", 0): "no line"}


def test_a_large_dead_letter_is_cut(spark):
    from millstream.spark.outputs.dead_letters import MAX_VALUE_BYTES, letters

    row = (b"\xff", bytearray(b"x" * (MAX_VALUE_BYTES + 5)), "t", 0, 3, datetime(2026, 1, 1, tzinfo=UTC))
    [letter] = letters(spark.createDataFrame([row], TYPES), [Topic("t", Small)]).collect()
    body = json.loads(letter.value)
    assert letter.key == b"t-0-3"
    assert (len(body["value"]), body["size"]) == (MAX_VALUE_BYTES, MAX_VALUE_BYTES + 5)
    assert (body["key"], body["key_encoding"]) == ("/w==", "base64")
    assert "encoding" not in body
