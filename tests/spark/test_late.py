"""Late rows: which they are, and that each is counted once."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from millstream.app.inputs import Topic
from millstream.app.outputs import View
from millstream.app.query import Query
from millstream.event import Event
from millstream.spark.late import Batch, Record, as_runs, watermark_of


def test_runs():
    origins = [("t", 0, 1), ("t", 0, 2), ("t", 0, 5), ("t", 1, 3)]
    assert as_runs(origins) == {"t": {"0": [[1, 3], [5, 6]], "1": [[3, 4]]}}


def test_a_batch_that_is_run_again_counts_once(tmp_path):
    record = Record(tmp_path)
    assert record.add(Batch(3, {}, 1000), [("t", 0, 2), ("t", 0, 1)]) == 2
    record.add(Batch(4, {}, 2000), [("t", 0, 9)])
    record.add(Batch(3, {}, 1000), [("t", 0, 1), ("t", 0, 2)])
    assert record.total == 3
    assert Record(tmp_path).total == 3
    assert json.loads((tmp_path / "3.json").read_text()) == {
        "version": 1,
        "batch": 3,
        "watermark": 1000,
        "rows": 2,
        "offsets": {"t": {"0": [[1, 3]]}},
    }


def test_too_many_ranges_keep_the_count(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.spark.late.MAX_RANGES", 2)
    record = Record(tmp_path)
    record.add(Batch(1, {}, 0), [("t", 0, offset) for offset in (1, 3, 5)])
    content = json.loads((tmp_path / "1.json").read_text())
    assert (content["rows"], content["offsets"], record.total) == (3, None, 3)


def test_the_watermark_is_the_one_of_the_batch_before(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "6").write_text('v1\n{"batchWatermarkMs":1234,"conf":{}}\n{}')
    assert watermark_of(tmp_path, 7) == 1234
    assert watermark_of(tmp_path, 9) is None
    assert watermark_of(tmp_path, 0) == 0


class Seen(Event):
    place: str
    at: datetime


TOPIC = Topic("seen", Seen, event_time="at", lateness=timedelta(hours=1))


def hour(h, minute=0):
    return datetime(2013, 1, 1, h, minute, tzinfo=UTC)


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "late"),
    [
        ("window", [0, 1]),  # the window has ended by 06:00
        ("shaped before grouping", [0, 1]),
        ("hopping", [0, 1, 2]),  # one of the two windows of 05:30 … has ended
        ("deduplicated", [0, 1, 2]),  # the event's own time
    ],
)
def test_which_rows_a_batch_dropped(spark, kind, late):
    from pyspark.sql import functions as F

    from millstream.spark.late import dropped
    from millstream.spark.windows import tumbling
    from millstream.testing.rows import frame

    hourly = tumbling("at", "1 hour").alias("hour")
    functions = {
        "window": lambda d: d.groupBy("place", hourly).count(),
        "shaped before grouping": lambda d: (
            d.withColumn("p", F.upper("place"))
            .where("p != 'NOWHERE'")
            .groupBy("p", hourly)
            .agg(F.count("*").alias("n"))
        ),
        "hopping": lambda d: d.groupBy(F.window("at", "1 hour", "30 minutes").alias("w")).count(),
        "deduplicated": lambda d: d.dropDuplicates(["place", "at"]),
    }
    times = [hour(4), hour(5, 59) - timedelta(hours=1), hour(6), hour(6, 1), hour(7)]
    if kind == "hopping":
        times = [hour(4), hour(4, 59), hour(5, 45), hour(6), hour(7)]
    rows = frame(spark, "seen", [Seen(place="x", at=t) for t in times])
    query = Query("q", (TOPIC,), functions[kind], View("q", ("origin",)))
    found = dropped(rows, query, TOPIC, int(hour(6).timestamp() * 1000)).collect()
    assert sorted(r.offset for r in found) == late
