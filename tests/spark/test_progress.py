"""Facts of a query, from Spark's progress reports as values."""

import math

from millstream.spark.progress import Facts, maybe_late, next_offsets


def report(batch, **more):
    return {
        "batchId": batch,
        "numInputRows": 10,
        "processedRowsPerSecond": 12.34,
        "durationMs": {"triggerExecution": 250},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "stateOperators": [],
        "sources": [{"startOffset": None, "endOffset": '{"t": {"0": 5, "1": 7}}'}],
        "sink": {"numOutputRows": 3},
        **more,
    }


def test_totals_and_latest_values():
    facts = Facts("micro-batch")
    facts.take(report(0))
    assert (facts.state, facts.input_rows, facts.output_rows, facts.watermark) == ("running", 10, 3, None)
    assert facts.offsets == {"t": {"0": 5, "1": 7}}
    facts.take(
        report(
            1,
            eventTime={"watermark": "2013-01-01T05:00:00.000Z"},
            stateOperators=[{"numRowsTotal": 4}, {"numRowsTotal": 2}],
            sources=[{"endOffset": {"t": {"0": 9, "1": 7}}}],
        )
    )
    assert (facts.batch, facts.input_rows, facts.output_rows, facts.state_rows, facts.batch_ms) == (1, 20, 6, 6, 250)
    assert facts.watermark == "2013-01-01T05:00:00.000Z"
    assert facts.offsets == {"t": {"0": 9, "1": 7}}


def test_rows_that_a_batch_function_writes():
    facts = Facts("micro-batch")
    facts.take(report(0, sink={"numOutputRows": -1}))
    assert facts.output_rows is None
    facts.wrote(7)
    assert facts.output_rows == 7


def test_dead_letters_count_what_they_write():
    facts = Facts("micro-batch", dead=0)
    facts.take(report(0))
    assert facts.as_dict()["dead"] == 3
    assert "dead" not in Facts("micro-batch").as_dict()


def test_numbers_that_are_none():
    facts = Facts("realtime")
    for value in (None, math.nan, math.inf, "NaN"):
        facts.take(report(0, processedRowsPerSecond=value))
        assert facts.rows_per_second == 0.0


def test_offsets_and_lateness():
    late = report(3, stateOperators=[{"numRowsTotal": 1, "numRowsDroppedByWatermark": 2}])
    assert maybe_late(late)
    assert not maybe_late(report(3))
    assert next_offsets(report(0), "startOffset") == {}
    assert next_offsets({"sources": []}) == {}


def test_a_failed_query_that_runs_again_has_no_error():
    facts = Facts("micro-batch", state="restarting", error="no broker")
    facts.take(report(4))
    assert (facts.state, facts.error) == ("running", None)
