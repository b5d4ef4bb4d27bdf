"""The watermark of a query: nothing that is in time in its own partition is dropped, and nothing quiet holds windows open."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.app.inputs import Topic
from millstream.app.outputs import Stream, View
from millstream.app.query import Query
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.event import encode
from millstream.spark.watermark import Watermark
from tests.brokers import fresh, wait_until

START = datetime(2026, 1, 1, tzinfo=UTC)


class Reading(ms.Event):
    sensor: str
    at: datetime


LATENESS = 10  # of the tests' topics, in seconds


def topic(idle=60, lateness=LATENESS, name="t"):
    quiet = None if idle is None else timedelta(seconds=idle)
    return Topic(name, Reading, event_time="at", lateness=timedelta(seconds=lateness), idle=quiet)


def report(second, newest=None, *, ends=None, latest=None, name="t", observed="newest 0"):
    """A batch's progress report at a second of the clock. newest: by partition, in seconds."""
    ends = ends or {"0": 1, "1": 1}
    return {
        "timestamp": (START + timedelta(seconds=second)).isoformat(),
        "sources": [{"endOffset": {name: ends}, "latestOffset": {name: latest or ends}}],
        "observedMetrics": {observed: {p: t * 1000 for p, t in (newest or {}).items()}},
    }


def send(kafka, topic, events):
    """Make the topic, and send events as (partition, second)."""
    ensure_topics(kafka, [(topic.name, 2, {})])
    sender = producer(kafka)
    for partition, second in events:
        event = Reading(sensor=str(partition), at=START + timedelta(seconds=second))
        sender.produce(topic.name, encode(event), partition=partition)
    sender.flush()


def at(second):
    return (START + timedelta(seconds=second)).isoformat()


def watermark(*topics):
    found = Watermark()
    for each in topics or [topic()]:
        found.watch(each)
    return found


def test_it_is_the_lowest_of_the_partitions_and_never_goes_back():
    one = watermark()
    one.take(report(0, {"0": 100}))
    assert one.time() is None  # what partition 1 will bring is not known
    one.take(report(1, {"1": 50}))
    assert one.time() == 40_000
    one.take(report(2, {"0": 30, "1": 70}))
    assert one.time() == 60_000
    one.take(report(3, {"0": 200}, ends={"0": 1, "1": 1, "2": 0}))  # a partition more
    assert one.time() == 60_000


def test_a_quiet_partition_holds_for_its_idleness_and_no_longer():
    one = watermark()
    one.take(report(0, {"0": 100, "1": 50}))
    one.take(report(59, {"0": 160}))
    assert one.time() == 40_000
    one.quiet(at(60))
    assert one.time() == 150_000
    one.take(report(61, {"1": 90}))  # it may be late now, and counts again
    assert one.time() == 150_000
    one.take(report(62, {"0": 300}))
    assert one.time() == 150_000


def test_an_empty_partition_is_waited_for_as_long():
    one = watermark()
    one.take(report(0, {"0": 100}, ends={"0": 9, "1": 0}))
    one.quiet(at(59))
    assert one.time() is None
    one.take(report(60, {"0": 101}, ends={"0": 10, "1": 0}))
    assert one.time() == 91_000


def test_what_has_not_been_read_yet_is_not_quiet():
    one = watermark()
    one.take(report(0, {"0": 100, "1": 50}))
    one.take(report(100, {"0": 200}, ends={"0": 9, "1": 1}, latest={"0": 9, "1": 7}))
    assert one.time() == 40_000
    one.quiet(at(159))
    assert one.time() == 40_000
    one.take(report(160, {"0": 201}))
    assert one.time() == 191_000


def test_when_all_are_quiet_the_newest_counts():
    one = watermark()
    one.take(report(0, {"0": 100, "1": 50}))
    one.quiet(at(300))
    assert one.time() == 90_000
    assert watermark().time() is None


def test_without_an_idleness_it_waits_for_ever():
    one = watermark(topic(idle=None))
    one.take(report(0, {"0": 100}))
    one.quiet(at(10**6))
    assert one.time() is None


def test_each_topic_has_its_own_lateness():
    both = watermark(topic(), topic(name="u", lateness=30))
    both.take(report(0, {"0": 100, "1": 100}))
    assert both.time() is None  # of the other nothing is known
    both.take(report(1, {"0": 100, "1": 100}, name="u", observed="newest 1"))
    assert both.time() == 70_000
    both.take(report(2, {"0": 200, "1": 200}))
    assert both.time() == 70_000
    both.take(report(3, {"0": 150, "1": 150}, name="u", observed="newest 1"))
    assert both.time() == 120_000


@given(
    st.lists(st.lists(st.integers(0, 500), max_size=30), min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, 8), min_size=4, max_size=4), max_size=40),
)
def test_what_is_in_time_in_its_own_partition_is_never_before_the_watermark(partitions, batches):
    """partitions: event times, in offset order.   batches: how many events each batch reads of each partition."""
    one, read = watermark(topic(idle=None)), [0] * len(partitions)
    for number, sizes in enumerate(batches):
        time = one.time()
        newest = {}
        for p, times in enumerate(partitions):
            for i in range(read[p], min(read[p] + sizes[p], len(times))):
                in_time = not times[:i] or times[i] >= max(times[:i]) - LATENESS
                assert not in_time or time is None or times[i] * 1000 >= time
                newest[str(p)] = max(times[i], newest.get(str(p), 0))
            read[p] = min(read[p] + sizes[p], len(times))
        ends = {str(p): count for p, count in enumerate(read)}
        one.take(report(number, newest, ends=ends, latest={str(p): len(t) for p, t in enumerate(partitions)}))


@pytest.mark.system
def test_partitions_read_at_different_speed_lose_nothing(runner, kafka, views, monkeypatch):
    from pyspark.sql import functions as F

    monkeypatch.setattr("millstream.spark.kafka.MAX_EVENTS_PER_BATCH", 400)
    readings = topic(name=fresh("readings"))
    # Each partition is strictly in order; the first covers ten times the time of the second.
    send(kafka, readings, [(p, i * step) for i in range(1000) for p, step in ((0, 1.0), (1, 0.1))])
    counts = Query(
        "counts",
        (readings,),
        lambda r: r.groupBy("sensor", ms.tumbling("at", "10 seconds").alias("w")).agg(F.count("*").alias("n")),
        View("counts", ("sensor", "w")),
        every=timedelta(milliseconds=100),
    )
    app = fresh("m").replace("-", "_")

    def counted():
        with psycopg.connect(views) as connection:
            rows = connection.execute(f'select sensor, sum(n)::int from "{app}".counts group by 1').fetchall()
        return dict(rows)

    with runner.running(app, [counts]) as facts:
        wait_until(lambda: facts("counts").get("offsets") == {readings.name: {"0": 1000, "1": 1000}}, "all is read", 90)
        assert (counted(), facts("counts")["dropped"]) == ({"0": 1000, "1": 1000}, 0)


@pytest.mark.system
@pytest.mark.parametrize("empty", ["partition", "topic"])
def test_what_is_quiet_does_not_hold_windows_open(runner, kafka, empty):
    from pyspark.sql import functions as F

    one, other = topic(name=fresh("one"), idle=2), topic(name=fresh("other"), idle=2)
    send(kafka, one, [(0, 0), (0, 5), (0, 100)] + [(1, 0)] * (empty == "topic"))
    send(kafka, other, [])

    def function(*frames):
        rows = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
        return rows.groupBy("sensor", ms.tumbling("at", "10 seconds").alias("w")).agg(F.count("*").alias("n"))

    inputs = (one,) if empty == "partition" else (one, other)
    to = fresh("out")
    closed = Query("closed", inputs, function, Stream(to, ()), every=timedelta(milliseconds=100))
    with runner.running(fresh("m").replace("-", "_"), [closed]):
        wait_until(lambda: list(tail(kafka, to, start="earliest", follow=False)), "the window has closed", 60)
