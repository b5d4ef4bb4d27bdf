"""What a plan says of a function: what it does, how Spark runs it, and what is refused in words."""

import threading
from pathlib import Path

import pytest

from millstream.settings import MillstreamError, Unreachable

pytestmark = pytest.mark.system

LOCK = threading.Lock()


@pytest.fixture(scope="module")
def streams(spark):
    """Two inputs with event time, and one without."""
    from pyspark.sql import functions as F

    from millstream.spark.analysis import as_input
    from millstream.spark.provenance import TYPE

    def stream(time):
        rate = spark.readStream.format("rate").load()
        rows = rate.select(
            F.col("value").alias("k"), F.col("timestamp").alias(time or "at"), F.lit(None).cast(TYPE).alias("_origin")
        )
        return as_input(rows.withWatermark(time, "1 minute") if time else rows)

    return stream("a_at"), stream("b_at"), stream(None)


def test_operators_of_the_function_alone(spark, streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import aggregates, multiplies, operators, stateful

    a, _, _ = streams
    assert stateful(a.where("k > 1").select("k")) == []
    assert stateful(a.groupBy("k").count()) == ["an aggregate"]
    assert stateful(a.dropDuplicates(["k"]).limit(3)) == ["limit", "dropDuplicates"]
    assert aggregates(a.groupBy("k").agg(F.count("*")))
    assert not aggregates(a.dropDuplicates(["k"]))
    assert operators(a) == []
    assert not multiplies(a.where("k > 1"))
    for several in (
        a.select(F.explode(F.array("k", "k"))),
        a.union(a),
        a.join(spark.range(2), F.col("k") == F.col("id")),
        a.groupBy(F.window("a_at", "2 minutes", "1 minute")).count(),
    ):
        assert multiplies(several)


def test_what_gives_another_value_when_computed_again(streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import not_repeatable

    a, _, _ = streams
    assert not_repeatable(a.select(F.col("k") + 1)) == []
    assert "rand" in not_repeatable(a.select((F.rand() * 2).alias("r")))[0]
    assert not_repeatable(a.select(F.current_timestamp()))
    assert not_repeatable(a.select(F.udf(lambda v: v).asNondeterministic()("k")))


def test_output_modes(streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import output_mode

    a, b, plain = streams
    windows = a.groupBy(F.window("a_at", "1 minute").alias("w")).agg(F.count("*").alias("n"))
    final_first, changes_first = ("append", "update"), ("update", "append")
    bounded = F.expr("k = bk AND b_at BETWEEN a_at AND a_at + INTERVAL 1 MINUTE")
    outer = a.join(b.withColumnRenamed("k", "bk"), bounded, "left")
    twice = windows.groupBy(F.window(F.window_time("w"), "1 hour")).agg(F.sum("n"))
    assert output_mode("q", windows, final_first) == "append"
    assert output_mode("q", windows, changes_first) == "update"
    assert output_mode("q", a.groupBy("k").count(), final_first) == "update"
    assert output_mode("q", outer, changes_first) == "append"
    assert output_mode("q", twice, changes_first) == "append"
    for wrong, instead in (
        (a.orderBy("k"), "sort where they are read"),
        (plain.groupBy("k").count().groupBy("count").count(), "write the rows to a topic first"),
    ):
        with pytest.raises(MillstreamError, match=f"^q: .*{instead}"):
            output_mode("q", wrong, changes_first)


def test_state_that_would_grow_for_ever(streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import check_bounded

    a, b, plain = streams
    other = b.withColumnRenamed("k", "bk")
    good = [
        a.groupBy(F.window("a_at", "1 minute").alias("w")).count(),
        plain.groupBy("k").count(),
        a.dropDuplicates(["k", "a_at"]),
        a.dropDuplicatesWithinWatermark(["k"]),
        a.join(other, F.expr("k = bk AND b_at BETWEEN a_at AND a_at + INTERVAL 1 MINUTE")),
    ]
    for frame in good:
        check_bounded("q", frame)
    wrong = {
        "no event time": plain.groupBy(F.window("at", "1 minute")).count(),
        "dropDuplicatesWithinWatermark": a.dropDuplicates(["k"]),
        "no bound in time": a.join(other, F.expr("k = bk")),
    }
    for said, frame in wrong.items():
        with pytest.raises(MillstreamError, match=f"^q: .*{said}"):
            check_bounded("q", frame)


def test_real_time_mode_is_asked_before_it_starts(streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import check_realtime

    a, _, _ = streams
    check_realtime("q", a.where("k > 1").select(F.upper(F.col("k").cast("string"))))
    with pytest.raises(MillstreamError, match="real-time mode cannot run a Python UDF"):
        check_realtime("q", a.select(F.udf(lambda v: v)("k")))
    with pytest.raises(MillstreamError, match="cannot run dropDuplicatesWithinWatermark"):
        check_realtime("q", a.dropDuplicatesWithinWatermark(["k"]))


def test_functions_that_fail(spark, streams):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import called

    frame = spark.range(3)
    with pytest.raises(MillstreamError, match=r"view 'v': A column.*`nix`"):
        called("view 'v'", lambda d: d.where("nix > 1"), frame)
    with pytest.raises(MillstreamError, match="must return a DataFrame, got NoneType"):
        called("view 'v'", lambda d: None, frame)
    with pytest.raises(MillstreamError, match=r"view 'v': KeyError: 'oops' \(test_analysis.py line \d+"):
        called("view 'v'", lambda d: {}["oops"], frame)
    with pytest.raises(MillstreamError, match=r"the column 'id' is there twice.*\.drop"):
        called(
            "view 'v'",
            lambda d: d.select("id", F.col("id").alias("id")),
            frame,
        )
    with pytest.raises(Unreachable, match="FileNotFoundError"):
        called("view 'v'", lambda d: Path("/nowhere").read_text(), frame)

    def guarded(value):
        with LOCK:
            return value

    with pytest.raises(MillstreamError, match="the function 'guarded' uses 'LOCK', a lock, which cannot be sent"):
        called("view 'v'", lambda d: d.select(F.udf(guarded)("id")), frame)
