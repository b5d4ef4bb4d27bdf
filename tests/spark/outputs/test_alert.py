"""Alerts: whose rows can be known again, and what is said otherwise."""

import pytest

from millstream.settings import MillstreamError

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def events(spark):
    from millstream.spark.analysis import as_input
    from millstream.spark.provenance import TYPE

    return as_input(spark.createDataFrame([], f"user string, n int, _origin {TYPE.simpleString()}"))


def test_rows_that_can_be_known_again(events):
    from pyspark.sql import functions as F

    from millstream.spark.outputs.alert import check_identity

    check_identity("q", events.where("n > 1"), False)
    check_identity("q", events.withColumn("x", F.rand()), False)  # one row per event: its cause tells it
    check_identity("q", events.withColumn("x", F.explode(F.array("n"))), True)
    check_identity("q", events.groupBy("user").agg(F.max_by("_origin", "n").alias("_origin")), False)


def test_rows_that_cannot(events):
    from pyspark.sql import functions as F

    from millstream.spark.outputs.alert import check_identity

    for frame, several, said in (
        (events.select("user"), False, r"Keep it: \.select\('_origin', …\)"),
        (events.groupBy("user").count(), False, r"lost in an aggregate: keep it with F\.max_by"),
        (events.select("_origin", F.explode(F.array(F.rand()))), True, "rand.*gives another value"),
        (events.select("_origin", F.explode(F.array(F.uuid()))), True, "uuid.*gives another value"),
    ):
        with pytest.raises(MillstreamError, match=f"^q: .*{said}"):
            check_identity("q", frame, several)
