"""The events that caused a row: merged after joins, as text, and as what tells rows apart."""

from datetime import UTC, datetime

import pytest

from millstream.settings import MillstreamError

pytestmark = pytest.mark.system

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def frames(spark):
    """Rows of two topics: id and cause."""
    from millstream.spark.provenance import TYPE

    def rows(topic, ids):
        schema = f"id int, _origin {TYPE.simpleString()}"
        return spark.createDataFrame([(i, (topic, 0, i, AT)) for i in ids], schema)

    return rows("b", [1, 2]), rows("a", [2, 3])


def texts(frame):
    from millstream.spark.provenance import text

    return {r.id: r.t for r in frame.select("id", text(frame).alias("t")).collect()}


def test_one_cause(frames):
    from millstream.spark.provenance import merged, one_event

    left, _ = frames
    assert merged(left, "q").columns == ["id", "_origin"]
    assert one_event(merged(left, "q"))
    assert texts(left) == {1: "b-0-1", 2: "b-0-2"}


def test_causes_merge_into_one_ordered_list_whatever_the_order_of_a_join(frames):
    from millstream.spark.provenance import merged, one_event

    left, right = frames
    for joined in (left.join(right, "id", "full"), right.join(left, "id", "full")):
        found = merged(joined, "q")
        assert found.columns == ["id", "_origin"]
        assert not one_event(found)
        assert texts(found) == {1: "b-0-1", 2: "a-0-2,b-0-2", 3: "a-0-3"}
    again = merged(merged(left.join(right, "id"), "q").join(left, "id"), "q")
    assert texts(again) == {2: "a-0-2,b-0-2"}


def test_a_column_of_that_name_which_is_something_else(frames):
    from millstream.spark.provenance import merged

    left, _ = frames
    with pytest.raises(MillstreamError, match=r"q: the column '_origin' names the events.*made it int"):
        merged(left.withColumn("_origin", left.id), "q")


def test_identity(frames):
    from pyspark.sql import functions as F

    from millstream.spark.provenance import identity

    left, _ = frames
    two = left.select("id", "_origin", F.explode(F.array(F.lit("x"), F.lit("y"))).alias("part"))
    assert {r[0] for r in two.select(identity(two, None)).collect()} == {"b-0-1", "b-0-2"}
    content = F.to_json(F.struct("id", "part"))
    found = [r[0] for r in two.select(identity(two, content)).collect()]
    assert len(set(found)) == 4
    assert sorted(found) == sorted(r[0] for r in two.select(identity(two, content)).collect())
    causes, _, digest = found[0].partition("#")
    assert causes.startswith("b-0-") and int(digest, 16) >= 0
