"""Joins in a window of time against a model in plain Python: all rows at once, and as two streams in shuffled batches."""

import random
from datetime import UTC, datetime, timedelta

import pytest

import millstream as ms
from millstream.settings import MillstreamError
from millstream.spark.analysis import as_input, check_bounded
from tests.spark.streams import Memory

pytestmark = pytest.mark.system

START = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE, AFTER = 5, 20  # seconds
HOW = ["inner", "left", "right", "full", "unmatched"]


def model(left, right, how):
    """left, right: (key, second)."""
    pairs = [(a, b) for a in left for b in right if a[0] == b[0] and -BEFORE <= b[1] - a[1] <= AFTER]
    alone = [a for a in left if a not in {x for x, _ in pairs}]
    if how == "unmatched":
        return sorted((k, t) for k, t in alone)
    found = [(k, t, s) for (k, t), (_, s) in pairs]
    if how in ("left", "full"):
        found += [(k, t, None) for k, t in alone]
    if how in ("right", "full"):
        found += [(k, None, s) for k, s in right if (k, s) not in {y for _, y in pairs}]
    return sorted(found, key=str)


def joined(left, right, how):
    return ms.join_within(
        left, right, "k", times=("a_at", "b_at"), after=f"{AFTER} seconds", before=f"{BEFORE} seconds", how=how
    )


def seconds(time):
    return None if time is None else round((time.astimezone(UTC) - START).total_seconds())


def taken(rows, how):
    if how == "unmatched":
        return sorted((r.k, seconds(r.a_at)) for r in rows)
    return sorted(((r.k, seconds(r.a_at), seconds(r.b_at)) for r in rows), key=str)


def some(seed):
    """Distinct keys and seconds, in order; partners exactly at both ends are among them."""
    chance = random.Random(seed)
    left = sorted({(chance.choice("abc"), 5 * chance.randrange(60)) for _ in range(40)}, key=lambda row: row[1])
    right = sorted({(chance.choice("abc"), 5 * chance.randrange(60)) for _ in range(25)}, key=lambda row: row[1])
    return left, right


@pytest.mark.parametrize("how", HOW)
def test_all_rows_at_once(spark, how):
    left, right = some(1)
    frames = [
        spark.createDataFrame([(k, START + timedelta(seconds=t)) for k, t in rows], f"k string, {name} timestamp")
        for rows, name in ((left, "a_at"), (right, "b_at"))
    ]
    assert taken(joined(*frames, how).collect(), how) == model(left, right, how)


def timed(memory, name, lateness="10 seconds"):
    return as_input(
        memory.frame.selectExpr(
            "split(value, ' ')[0] AS k", f"timestamp_seconds(cast(split(value, ' ')[1] AS bigint)) AS {name}"
        ).withWatermark(name, lateness)
    )


@pytest.mark.parametrize("how", HOW)
def test_two_streams_give_the_same(spark, tmp_path, how):
    """Within a lateness of ten minutes nothing is late, in whatever order the rows come; the last rows let all others go."""
    left, right = some(2)
    chance = random.Random(3)
    given = [(0, row) for row in left] + [(1, row) for row in right]
    chance.shuffle(given)
    memories, name = (Memory(spark, 1), Memory(spark, 2)), f"joined_{how}"
    frames = [timed(memories[0], "a_at", "10 minutes"), timed(memories[1], "b_at", "10 minutes")]
    result = joined(*frames, how)
    check_bounded("q", result)
    query = (
        result.writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .option("checkpointLocation", tmp_path.as_uri())
        .start()
    )
    base = int(START.timestamp())
    try:
        for i in range(0, len(given), 22):
            for side, (key, second) in given[i : i + 22]:
                memories[side].add(f"{key} {base + second}")
            query.processAllAvailable()
        for memory in memories:
            memory.add(f"end {base + 100_000}")
        query.processAllAvailable()
        found = spark.table(name).where("k <> 'end'").collect()
    finally:
        query.stop()
    assert taken(found, how) == model(left, right, how)


def test_a_bound_on_one_end_is_refused(spark):
    from pyspark.sql import functions as F

    a, b = timed(Memory(spark, 1), "a_at"), timed(Memory(spark, 2), "b_at").withColumnRenamed("k", "j")
    for condition, kept in (
        ("b_at > a_at", "left"),
        ("b_at < a_at", "right"),
        ("a_at + INTERVAL 5 MINUTES > b_at", "right"),
    ):
        with pytest.raises(MillstreamError, match=f"query 'q': .* its {kept} side is kept for ever"):
            check_bounded("query 'q'", a.join(b, F.expr(f"k = j AND {condition}")))
    for condition in (
        "b_at BETWEEN a_at AND a_at + INTERVAL 5 MINUTES",
        "b_at >= a_at AND b_at < a_at + INTERVAL 5 MINUTES",
        "a_at = b_at",
    ):
        check_bounded("query 'q'", a.join(b, F.expr(f"k = j AND {condition}")))
    with pytest.raises(MillstreamError, match="no bound in time"):
        check_bounded("query 'q'", a.join(b, F.expr("k = j")))


def test_what_is_refused(spark):
    a = spark.sql("select 'x' AS k, timestamp'2026-01-01 00:00:00' AS a_at, 1 AS n")
    b = spark.sql("select 'x' AS k, timestamp'2026-01-01 00:00:00' AS b_at, 1 AS n")
    times = ("a_at", "b_at")
    with pytest.raises(MillstreamError, match="both sides have n"):
        ms.join_within(a, b, "k", times=times, after="1 hour")
    with pytest.raises(MillstreamError, match=r"the right side lacks b_at; it has k, n"):
        ms.join_within(a, b.drop("b_at"), "k", times=times, after="1 hour")
    with pytest.raises(MillstreamError, match="how far apart"):
        ms.join_within(a, b.drop("n"), "k", times=times)
    with pytest.raises(MillstreamError, match="got 'outer'"):
        ms.join_within(a, b.drop("n"), "k", times=times, after="1 hour", how="outer")
