"""Late rows: which they are, and that each is counted once."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.app.inputs import Topic
from millstream.app.outputs import View
from millstream.app.query import Query
from millstream.event import Event
from millstream.spark import late
from millstream.spark.late import Batch, Record, as_runs, watermark_of


def test_runs():
    origins = [("t", 0, 1), ("t", 0, 2), ("t", 0, 5), ("t", 1, 3)]
    assert as_runs(origins) == {"t": {"0": [[1, 3], [5, 6]], "1": [[3, 4]]}}


def test_a_batch_that_is_run_again_counts_once(tmp_path):
    record = Record(tmp_path)
    assert record.add(Batch(3, {}, 1000), [("t", 0, 2), ("t", 0, 1)]) == 2
    record.add(Batch(4, {}, 2000), [("t", 0, 9)])
    record.add(Batch(3, {}, 1000), [("t", 0, 1), ("t", 0, 2)])
    for found in (record, Record(tmp_path)):
        assert (found.total, found.offsets) == (3, {"t": {"0": [[1, 3], [9, 10]]}})
    assert [p.name for p in tmp_path.iterdir()] == ["dropped.jsonl"]


def test_a_line_that_a_crash_cut_off_is_written_over(tmp_path):
    record = Record(tmp_path)
    record.add(Batch(1, {}, 0), [("t", 0, 1)])
    record.add(Batch(2, {}, 0), [("t", 0, 5)])
    path = tmp_path / "dropped.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        path.write_bytes(whole[:length])
        record = Record(tmp_path)
        assert record.total == 1
        record.add(Batch(2, {}, 0), [("t", 0, 5)])
        assert path.read_bytes() == whole


def test_the_file_is_bounded_and_only_the_newest_offsets_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(late, "MAX_RUNS", 20)
    monkeypatch.setattr(late, "MIN_SIZE", 500)
    record = Record(tmp_path)
    for number in range(300):
        record.add(Batch(number, {}, 0), [("t", p, 2 * number) for p in (0, 1)])
        assert (tmp_path / "dropped.jsonl").stat().st_size < 2000
    for found in (record, Record(tmp_path)):
        assert found.total == 600
        kept = found.offsets["t"]["0"]
        assert kept == [[2 * n, 2 * n + 1] for n in range(300 - len(kept), 300)]
        assert found.since["t"]["0"] <= kept[0][0]
    record.add(Batch(0, {}, 0), [("t", 0, 0)])  # was counted and is forgotten
    assert record.total == 600


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 30)), max_size=10), max_size=10
    )
)
def test_it_is_the_set_of_all_offsets(batches):
    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder))
        for number, origins in enumerate(batches):
            record.add(Batch(number, {}, 0), set(origins))
        for found in (record, Record(Path(folder))):
            runs = [
                (t, int(p), o)
                for t, ps in found.offsets.items()
                for p, rs in ps.items()
                for b, e in rs
                for o in range(b, e)
            ]
            assert sorted(runs) == sorted({o for origins in batches for o in origins})
            assert found.total == len(runs)


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
    from millstream.spark.operators.windows import tumbling
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
    query = Query("q", (TOPIC,), functions[kind], View("q", ("place",)))
    found = dropped([rows], query, int(hour(6).timestamp() * 1000)).collect()
    assert sorted(r.offset for r in found) == late
