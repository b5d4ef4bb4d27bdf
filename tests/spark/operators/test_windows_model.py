"""Each kind of window against a model in plain Python: all rows at once, and as a stream with shuffled and late rows."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

import millstream as ms
from millstream.settings import MillstreamError
from tests.spark.streams import Memory

pytestmark = pytest.mark.system

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Clocks in Oslo go forward on 2026-03-29: times on both sides, at borders and between them.
BEGIN = datetime(2026, 3, 27, 20, 30, tzinfo=UTC)
LATENESS = timedelta(hours=6)
OSLO = ZoneInfo("Europe/Oslo")


def hours(count):
    return timedelta(hours=count)


def floor(time, size, start=timedelta(0)):
    return time - (time - EPOCH - start) % size


def tumbling(time):
    first = floor(time, hours(12), hours(5))
    return [(first, first + hours(12))]


def hopping(time):
    last = floor(time, hours(4))
    return [(last - hours(4 * i), last - hours(4 * i) + hours(10)) for i in range(3) if time < last + hours(10 - 4 * i)]


def cumulating(time):
    first = floor(time, hours(12))
    return [(first, first + hours(3 * i)) for i in range(1, 5) if time < first + hours(3 * i)]


def day_of(date):
    return datetime(date.year, date.month, date.day, tzinfo=OSLO).astimezone(UTC)


def calendar(time):
    date = time.astimezone(OSLO).date()
    return [(day_of(date), day_of(date + timedelta(days=1)))]


def plain(window):
    return lambda frame: frame.groupBy("k", window().alias("w")).count()


# Their function of a frame, and their model: the windows of one time.
KINDS = {
    "tumbling": (plain(lambda: ms.tumbling("t", "12 hours", start="5 hours")), tumbling),
    "hopping": (plain(lambda: ms.hopping("t", "10 hours", "4 hours")), hopping),
    "cumulating": (
        lambda f: f.transform(ms.cumulating, "t", "12 hours", "3 hours", name="w").groupBy("k", "w").count(),
        cumulating,
    ),
    "calendar": (
        lambda f: f.transform(ms.calendar, "t", "day", "Europe/Oslo", name="w").groupBy("k", "w").count(),
        calendar,
    ),
    "session": (plain(lambda: ms.session("t", "2 hours")), None),
}


def merged(rows, known=()):
    """Sessions as (key, first, last, count), of rows and of sessions that are still open."""
    found = []
    for key, first, last, count in sorted([*known, *[(k, t, t, 1) for k, t in rows]]):
        if found and found[-1][0] == key and first - found[-1][2] <= hours(2):
            _, begin, end, before = found.pop()
            first, last, count = begin, max(end, last), before + count
        found.append((key, first, last, count))
    return found


def as_windows(sessions):
    return {(key, first, last + hours(2)): count for key, first, last, count in sessions}


def counted(rows, windows):
    return dict(Counter((key, *window) for key, time in rows for window in windows(time)))


def taken(result):
    return {(r.k, r.w.start.astimezone(UTC), r.w.end.astimezone(UTC)): r["count"] for r in result}


def rows_of(seed, count=150):
    """Keys and times over four days, shuffled within twelve hours; every fifth time stands on a full hour."""
    chance = random.Random(seed)
    times = []
    for number in range(count):
        time = BEGIN + timedelta(minutes=number * 96 * 60 / count + chance.uniform(-360, 360))
        times.append(
            time.replace(minute=0, second=0, microsecond=0) if number % 5 == 0 else time.replace(microsecond=0)
        )
    return [(chance.choice("ab"), time) for time in times]


@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_at_once(spark, kind):
    function, windows = KINDS[kind]
    rows = rows_of(1) + rows_of(2)
    result = function(spark.createDataFrame(rows, "k string, t timestamp"))
    assert taken(result.collect()) == (as_windows(merged(rows)) if windows is None else counted(rows, windows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gives_what_was_in_time(spark, tmp_path, kind):
    """Each batch is judged by the newest time of those before it."""
    function, windows = KINDS[kind]
    memory, name = Memory(spark), f"windows_{kind}"
    frame = memory.frame.selectExpr(
        "split(value, ' ')[0] AS k", "timestamp_seconds(cast(split(value, ' ')[1] AS bigint)) AS t"
    ).withWatermark("t", "6 hours")
    query = (
        function(frame)
        .writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .option("checkpointLocation", tmp_path.as_uri())
        .start()
    )
    rows = rows_of(3)
    random.Random(4).shuffle(rows[75:])
    rows[100] = ("a", BEGIN)  # too late for every window
    batches = [rows[i : i + 30] for i in range(0, 150, 30)]
    closed, still, over, newest = Counter(), [], [], EPOCH
    try:
        for batch in [*batches, [("end", BEGIN + timedelta(days=30))]]:
            limit, newest = newest - LATENESS, max([newest, *[t for _, t in batch]])
            if windows is None:  # what is over takes no row any more
                still = merged([row for row in batch if row[1] + hours(2) > limit], still)
                over += [s for s in still if s[2] + hours(2) <= newest - LATENESS]
                still = [s for s in still if s[2] + hours(2) > newest - LATENESS]
            else:
                closed.update((key, *w) for key, time in batch for w in windows(time) if w[1] > limit)
            memory.add(*[f"{k} {int(t.timestamp())}" for k, t in batch])
            query.processAllAvailable()
        result = taken(spark.table(name).where("k <> 'end'").collect())
    finally:
        query.stop()
    if windows is None:
        assert result == as_windows(over)
        assert sum(result.values()) < len(rows)
    else:
        assert result == {w: n for w, n in closed.items() if w[0] != "end"}
        assert sum(result.values()) < sum(counted(rows, windows).values())  # something was late


@pytest.mark.parametrize(
    ("zone", "unit", "time", "start", "end"),
    [
        # Days of 23 and 25 hours.
        ("Europe/Oslo", "day", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("Europe/Oslo", "day", "2026-10-25T00:30", "2026-10-24T22:00", "2026-10-25T23:00"),
        # Midnight does not exist there that day.
        ("Africa/Cairo", "day", "2026-04-24T10:00", "2026-04-23T22:00", "2026-04-24T21:00"),
        # Half an hour more, and a date line.
        ("Asia/Kolkata", "month", "2026-01-31T18:29", "2025-12-31T18:30", "2026-01-31T18:30"),
        ("Asia/Kolkata", "month", "2026-01-31T18:30", "2026-01-31T18:30", "2026-02-28T18:30"),
        ("Pacific/Auckland", "year", "2025-12-31T11:00", "2025-12-31T11:00", "2026-12-31T11:00"),
        ("UTC", "week", "2026-01-01T00:00", "2025-12-29T00:00", "2026-01-05T00:00"),
        ("UTC", "quarter", "2026-05-05T00:00", "2026-04-01T00:00", "2026-07-01T00:00"),
        ("UTC", "month", "2028-02-29T23:59", "2028-02-01T00:00", "2028-03-01T00:00"),
    ],
)
def test_the_calendar(spark, zone, unit, time, start, end):
    frame = spark.createDataFrame([(datetime.fromisoformat(time + "+00:00"),)], "t timestamp")
    [row] = frame.transform(ms.calendar, "t", unit, zone).select(f"{unit}.start", f"{unit}.end").collect()
    assert [t.astimezone(UTC).isoformat()[:16] for t in row] == [start, end]


def test_what_is_refused(spark):
    frame = spark.sql("select timestamp'2026-01-01 00:00:00' AS t, 1 AS day")
    with pytest.raises(MillstreamError, match="leaves out"):
        ms.hopping("t", "1 hour", "2 hours")
    with pytest.raises(MillstreamError, match="multiple of the step"):
        ms.cumulating(frame, "t", "1 hour", "7 minutes")
    with pytest.raises(MillstreamError, match="at most 1000"):
        ms.cumulating(frame, "t", "1 day", "1 second")
    with pytest.raises(MillstreamError, match="expected one of day, week"):
        ms.calendar(frame, "t", "decade", "UTC")
    with pytest.raises(MillstreamError, match="time zone"):
        ms.calendar(frame, "t", "day", "Oslo")
    with pytest.raises(MillstreamError, match="has t, day"):
        ms.calendar(frame, "t", "day", "UTC")
