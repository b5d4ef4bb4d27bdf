"""Windows: their bounds, their names in results, and keys made of them."""

from datetime import UTC, datetime, timedelta

import pytest

from millstream.settings import MillstreamError

pytestmark = pytest.mark.system


def at(hour, minute=0, second=0, micro=0):
    return datetime(2013, 1, 1, hour, minute, second, micro, tzinfo=UTC)


def test_a_window_has_its_start_and_not_its_end(spark):
    from millstream.spark.operators.windows import flatten, tumbling

    times = [at(4, 59, 59, 999999), at(5), at(5, 59, 59, 999999), at(6)]
    frame = spark.createDataFrame([(t,) for t in times], "t timestamp").select(tumbling("t", "1 hour").alias("hour"))
    rows = flatten(frame).toArrow().to_pylist()
    assert [(r["hour_start"], r["hour_end"]) for r in rows] == [(at(h), at(h + 1)) for h in (4, 5, 5, 6)]


def test_sizes(spark):
    from millstream.spark.operators.windows import tumbling

    frame = spark.createDataFrame([(at(5, 17, 3),)], "t timestamp")
    for size, start in ((timedelta(minutes=15), at(5, 15)), ("1 day", at(0)), ("500 ms", at(5, 17, 3))):
        assert frame.select(tumbling("t", size).start.alias("s")).toArrow().to_pylist()[0]["s"] == start
    for wrong in ("soon", "0 seconds", "-1 hour"):
        with pytest.raises(MillstreamError, match="duration"):
            tumbling("t", wrong)


def test_keys(spark):
    from millstream.spark.operators.windows import cumulating, flat_key, tumbling

    frame = spark.createDataFrame([(at(5), "JFK")], "t timestamp, origin string")
    schema = frame.select("origin", tumbling("t", "1 hour").alias("hour")).schema
    assert flat_key(("origin", "hour"), schema, "view 'v'") == ("origin", "hour_start")
    day = cumulating(frame, "t", "1 day", "1 hour", name="day").groupBy("origin", "day").count()
    assert flat_key(("day", "origin"), day.schema, "view 'v'") == ("day_start", "day_end", "origin")
    with pytest.raises(MillstreamError, match=r"view 'v': the key names 'day'.*origin, hour"):
        flat_key(("day",), schema, "view 'v'")


def test_other_structs_stay(spark):
    from millstream.spark.operators.windows import flatten

    frame = spark.sql("select struct(1 as start, 2 as end) as span, 3 as `a.b`")
    assert flatten(frame).columns == ["span", "a.b"]
