"""What a plan says of a function, and Spark's errors in words."""

import pytest

from millstream.settings import MillstreamError
from millstream.spark.analysis import explain

REALTIME = (
    "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] Streaming real-time mode has the following limitation:\n"
    "The operator(s): org.apache.spark.sql.execution.python.ArrowEvalPythonExec, org.apache.spark.sql.execution.SortExec are not"
    " in the operator allowlist for Real-Time Mode."
)
BATCH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: An exception was raised. Return Message: Traceback (most
recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
{error}
 SQLSTATE: 39000"""


def test_real_time_mode_in_users_words():
    said = explain(RuntimeError(REALTIME))
    assert "a Python UDF, sort" in said
    assert 'latency="micro-batch"' in said


def test_an_error_in_a_batch_function():
    ours = "millstream.settings.errors.MillstreamError: table 'planes': its columns are not known yet"
    assert explain(RuntimeError(BATCH.format(error=ours))) == "table 'planes': its columns are not known yet"
    other = "psycopg.OperationalError: connection failed"
    assert explain(RuntimeError(BATCH.format(error=other))) == other


def test_codes_and_states_are_left_out():
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `nix` cannot be resolved. SQLSTATE: 42703; line 1 pos 0;\n'Filter"
    )
    assert explain(RuntimeError(text)) == "A column `nix` cannot be resolved."


def test_a_query_that_died():
    text = "Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 failed\nmore"
    assert explain(RuntimeError(text)) == "Task 0 failed"


@pytest.mark.system
def test_operators(spark):
    from pyspark.sql import functions as F

    from millstream.spark.analysis import aggregates, called, stateful

    frame = spark.range(3)
    assert stateful(frame.where("id > 1").select("id")) == []
    assert stateful(frame.join(spark.range(2), "id")) == []
    assert stateful(frame.groupBy("id").count()) == ["an aggregate"]
    assert stateful(frame.dropDuplicates(["id"]).limit(3)) == ["limit", "dropDuplicates"]
    assert aggregates(frame.groupBy("id").agg(F.count("*")))
    assert not aggregates(frame.dropDuplicates(["id"]))
    with pytest.raises(MillstreamError, match=r"view 'v': A column.*`nix`"):
        called("view 'v'", lambda d: d.where("nix > 1"), frame)
    with pytest.raises(MillstreamError, match="must return a DataFrame, got NoneType"):
        called("view 'v'", lambda d: None, frame)
