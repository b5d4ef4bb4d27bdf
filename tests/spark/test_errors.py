"""Whose mistake an error is, told by types and codes alone, and what is said of it."""

import pytest

from millstream.settings import MillstreamError, Unreachable
from millstream.spark.errors import Blame, Cause, causes, failure, judge, python_error, raised

STREAM = Cause("org.apache.spark.sql.streaming.StreamingQueryException", "[STREAM_FAILED] …", "STREAM_FAILED", "XXKST")
TRACEBACK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/venv/site-packages/pyspark/worker.py", line 1, in main
    process()
  File "/home/ann/clicks.py", line 56, in bad
    raise ValueError("oops 1")
ValueError: oops 1
 SQLSTATE: 38000"""


def test_what_is_not_known_is_passing():
    for error in (
        RuntimeError("SSL connection refused, wrong password, does not exist"),
        OSError("gone"),
        KeyError("x"),
    ):
        assert failure(error).blame is Blame.PASSING
    away = [
        STREAM,
        Cause("org.apache.spark.SparkException", "Job aborted"),
        Cause("java.net.ConnectException", "refused"),
    ]
    assert judge(away).blame is Blame.PASSING
    assert judge(away).text == "ConnectException: refused"
    assert failure(Unreachable("the log is away")).blame is Blame.PASSING


def test_what_the_user_declared_is_final():
    assert failure(MillstreamError("the key names …")).blame is Blame.DECLARATION
    analysis = Cause(
        "org.apache.spark.sql.AnalysisException",
        "[UNRESOLVED_COLUMN] A column `nix` cannot be resolved. SQLSTATE: 42703",
    )
    assert judge([STREAM, analysis]).blame is Blame.DECLARATION
    assert judge([STREAM, analysis]).text == "A column `nix` cannot be resolved."


def test_real_time_mode_in_users_words():
    text = (
        "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] …\nThe operator(s):"
        " org.apache.spark.sql.execution.python.ArrowEvalPythonExec, org.apache.spark.sql.execution.SortExec are not"
    )
    found = judge([STREAM, Cause("x", text, "STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST")])
    assert found.blame is Blame.DECLARATION
    assert "a Python UDF, sort" in found.text and 'latency="micro-batch"' in found.text


def test_a_function_that_fails_on_an_event_is_shown_with_its_line():
    found = judge(
        [STREAM, Cause("org.apache.spark.api.python.PythonException", TRACEBACK, "PYTHON_EXCEPTION", "38000")]
    )
    assert found.blame is Blame.EVENT
    assert found.text == "ValueError: oops 1 (clicks.py line 56, in bad)"
    divided = Cause(
        "org.apache.spark.SparkArithmeticException", "[DIVIDE_BY_ZERO] Division by zero.", "DIVIDE_BY_ZERO", "22012"
    )
    assert judge([STREAM, divided]).blame is Blame.EVENT
    assert judge([STREAM, divided]).text == "Division by zero."


@pytest.mark.parametrize(
    ("condition", "blame", "said"),
    [
        ("STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", Blame.DECLARATION, "its kept state no longer fits"),
        ("STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA", Blame.DECLARATION, "groups reset"),
        ("KAFKA_DATA_LOSS.START_OFFSET_RESET", Blame.PASSING, "retention.ms"),
    ],
)
def test_conditions_of_spark(condition, blame, said):
    found = judge([STREAM, Cause("org.apache.spark.SparkException", "words", condition)])
    assert found.blame is blame
    assert said in found.text


def test_a_traceback_without_users_code():
    assert python_error("Traceback (most recent call last):\nKeyError: 'x'") == "KeyError: 'x'"
    assert python_error("nothing of the kind") == "nothing of the kind"


def test_an_exception_of_a_function_has_type_and_line():
    def wrong():
        raise KeyError("oops")

    with pytest.raises(KeyError) as caught:
        wrong()
    assert raised(caught.value).startswith("KeyError: 'oops' (test_errors.py line ")


def test_chains_of_python():
    try:
        try:
            raise OSError("the disk is full")
        except OSError as error:
            raise RuntimeError("while writing") from error
    except RuntimeError as error:
        assert [c.kind for c in causes(error)] == ["RuntimeError", "OSError"]
        assert failure(error).text == "OSError: the disk is full"


@pytest.mark.system
def test_an_exception_of_sparks_process_shows_its_cause(spark):
    with pytest.raises(
        Exception, match="For input string"
    ) as caught:  # py4j's, or PySpark's own once it has converted one
        spark._jvm.java.lang.Integer.parseInt("x")
    assert failure(caught.value).text == 'NumberFormatException: For input string: "x"'
