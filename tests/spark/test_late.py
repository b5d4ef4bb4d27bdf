"""Late rows: which they are, and that each is counted once."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
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


@settings(deadline=None)  # each example writes and syncs a file
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


def finished(checkpoint, number, watermark, ends):
    """What Spark leaves of a batch that ended. ends: the next offset of partition 0."""
    for folder, content in (
        ("offsets", f'v1\n{{"batchWatermarkMs":{watermark},"conf":{{}}}}\n{{"t":{{"0":{ends}}}}}'),
        ("commits", "v1\n{}"),
    ):
        (checkpoint / folder).mkdir(exist_ok=True)
        (checkpoint / folder / str(number)).write_text(content)


def test_after_a_kill_the_batches_that_nobody_judged_are_looked_at_again(tmp_path):
    for number, watermark in enumerate((0, 1000, 2000, 2000)):
        finished(tmp_path, number, watermark, 10 * (number + 1))
    (tmp_path / "commits" / "3").unlink()  # it runs again, and tells itself what it dropped
    assert late.since(tmp_path, -1) == [Batch(2, {"t": {0: (20, 30)}}, 1000)]  # nothing can be late before
    assert late.since(tmp_path, 2) == []
    record = Record(tmp_path)
    record.add(Batch(2, {}, 0), [])
    assert Record(tmp_path).judged == 2
    record.missed = True
    record.add(Batch(4, {}, 0), [("t", 0, 1)])
    assert (Record(tmp_path).judged, Record(tmp_path).total) == (2, 1)


def test_a_row_that_several_queries_dropped_counts_once(tmp_path):
    records = [Record(tmp_path / name) for name in "abc"]
    for record in records[:2]:
        record.add(Batch(1, {}, 0), [("t", 0, 7), ("t", 1, 7)])
    records[2].add(Batch(1, {}, 0), [("t", 0, 7), ("u", 0, 7)])
    assert late.distinct(records) == 3


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
        ("hopping", [0, 1]),  # of the two windows of 05:45 one takes it
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


@pytest.mark.system
def test_what_was_dropped_just_before_a_kill_is_counted_after_it(runner, kafka, until, monkeypatch):
    from millstream.client.admin import ensure_topics
    from millstream.client.producer import producer
    from millstream.event import encode
    from millstream.monitor.status import read as read_status
    from millstream.spark.driver import Driver
    from millstream.spark.operators.windows import tumbling
    from tests.brokers import fresh

    topic = Topic(fresh("seen"), Seen, event_time="at", lateness=timedelta(hours=1), partitions=1)
    ensure_topics(kafka, [(topic.name, 1, {})])
    function = lambda d: d.groupBy("place", tumbling("at", "1 hour").alias("hour")).count()  # noqa: E731
    queries = [
        Query(name, (topic,), function, View(name, ("place", "hour")), every=timedelta(milliseconds=100))
        for name in ("one", "other")
    ]
    app = fresh("m").replace("-", "_")

    def send(*times):
        sender = producer(kafka)
        for time in times:
            sender.produce(topic.name, encode(Seen(place="x", at=time)))
        sender.flush()

    def read(facts, rows):
        until(lambda: all(facts(q.name).get("offsets") == {topic.name: {"0": rows}} for q in queries), "all read", 60)

    with monkeypatch.context() as killed, runner.running(app, queries) as facts:
        killed.setattr(Driver, "_judge", lambda *given, **more: None)  # the kill comes before anything is noted
        send(hour(12))
        until(lambda: all((facts(q.name).get("watermark") or "")[11:13] == "11" for q in queries), "it moved", 60)
        send(hour(3), hour(11, 30), hour(4))
        read(facts, 4)
        until(lambda: all(facts(q.name).get("batch", 0) >= 2 for q in queries), "a batch more", 60)
        assert facts("one")["dropped"] == 0
    with runner.running(app, queries) as facts:
        until(lambda: all(facts(q.name).get("dropped") == 2 for q in queries), "counted", 60)
        until(lambda: read_status(kafka, app).get(("late", "rows"), {}).get("dropped") == 2, "each once", 20)


@pytest.mark.system
def test_a_function_that_does_not_go_by_time_drops_nothing(spark):
    """Unless Spark said that it did."""
    from millstream.spark.late import dropped
    from millstream.testing.rows import frame

    rows = frame(spark, "seen", [Seen(place="x", at=hour(1))])
    query = Query("q", (TOPIC,), lambda d: d.groupBy("place").count(), View("q", ("place",)))
    limit = int(hour(6).timestamp() * 1000)
    assert dropped([rows], query, limit, certain=False).count() == 0
    assert dropped([rows], query, limit).count() == 1
