"""What went wrong with a query: whose mistake it is, and one line about it that a user can act on.

One rule: what is not known to be the user's mistake is taken as passing; it is tried again, shown with its cause, and heals
without a restart. What is known goes by the type of the exception, Spark's error condition and SQLSTATE; never by words.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from millstream.settings import MillstreamError, Unreachable

MAX_CAUSES = 20  # of one error; a longer chain goes in circles
MAX_TEXT = 500  # characters of one line about an error


class Blame(Enum):
    """Whose mistake it is, as far as that is known."""

    PASSING = "nobody's: tried again until it works"
    EVENT = "the function failed on an event: tried again, and shown with the event"
    DECLARATION = "the declaration's: trying again cannot help"


@dataclass(frozen=True)
class Cause:
    """One exception of a chain. kind: its class.   condition, state: Spark's error condition and SQLSTATE, where it has one."""

    kind: str
    text: str
    condition: str = ""
    state: str = ""


@dataclass(frozen=True)
class Failure:
    """What went wrong, in one line, and whose mistake it is."""

    text: str
    blame: Blame = Blame.PASSING


_ANALYSIS = {
    "org.apache.spark.sql.AnalysisException",
    "org.apache.spark.sql.catalyst.ExtendedAnalysisException",
    "org.apache.spark.sql.catalyst.parser.ParseException",
}
_PYTHON = "org.apache.spark.api.python.PythonException"
_REAL_TIME = "STREAMING_REAL_TIME_MODE"
# Conditions of a function that was changed so that its kept state no longer fits.
_STATE = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_INVALID_",
    "STREAMING_STATEFUL_OPERATOR_",
)
_LOSS = "KAFKA_DATA_LOSS"
_DATA_EXCEPTION = (
    "22"  # SQLSTATE class 22 (ISO/IEC 9075-2): a value that an expression cannot take, such as a division by zero
)

# What users write, by the physical operators of Spark that real-time mode refuses.
NOT_REALTIME = {
    "BatchEvalPython": "a Python UDF",
    "ArrowEvalPython": "a Python UDF",
    "ArrowEvalPythonUDTF": "a Python UDTF",
    "BatchEvalPythonUDTF": "a Python UDTF",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "StreamingSymmetricHashJoin": "a join of two streams",
    "SortMergeJoin": "a join that is not a broadcast",
    "BroadcastNestedLoopJoin": "a join without an equality",
    "CartesianProduct": "a join without an equality",
    "StreamingGlobalLimit": "limit",
    "StreamingLocalLimit": "limit",
    "LocalLimit": "limit",
    "GlobalLimit": "limit",
    "Sort": "sort",
    "Window": "a window function",
    "StreamingDeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "SessionWindowStateStoreRestore": "a session window",
    "UpdatingSessions": "a session window",
    "MergingSessions": "a session window",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "FlatMapGroupsWithState": "applyInPandasWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "ObjectHashAggregate": "an aggregate such as percentile or collect_list",
    "SortAggregate": "an aggregate of strings",
}
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_SPARK_ROOM = Path(__file__).parent
_CODES = re.compile(r"^\[[A-Z_.]+\] | *SQLSTATE: \w{5}.*$")


def failure(error: BaseException) -> Failure:
    """Return what went wrong from what was raised, by Python or by Spark's process."""
    if isinstance(error, MillstreamError):
        return Failure(str(error), Blame.PASSING if isinstance(error, Unreachable) else Blame.DECLARATION)
    return judge(causes(error))


def judge(chain: Sequence[Cause]) -> Failure:
    """Return what went wrong from a chain of causes, the outermost first."""
    for cause in chain:
        if cause.condition.startswith(_REAL_TIME):
            return Failure(_real_time(cause.text), Blame.DECLARATION)
        if cause.condition.startswith(_STATE):
            return Failure(
                f"the function was changed and its kept state no longer fits: {first_line(cause.text)}. Change it back, or begin"
                " again: `millstream groups reset` with the query's group.",
                Blame.DECLARATION,
            )
        if cause.condition.startswith(_LOSS):
            return Failure(
                f"events that were not read yet are gone from the topic ({first_line(cause.text)}). Keep them longer"
                " (retention.ms); to begin with what is there: `millstream groups reset` with the query's group."
            )
        if cause.kind == _PYTHON:
            return Failure(python_error(cause.text), Blame.EVENT)
        if cause.kind in _ANALYSIS:
            return Failure(first_line(cause.text), Blame.DECLARATION)
    last = next((c for c in reversed(chain) if c.text), Cause("Error", "no cause is known"))
    if any(c.state.startswith(_DATA_EXCEPTION) for c in chain):
        return Failure(first_line(last.text), Blame.EVENT)
    return Failure(f"{last.kind.rpartition('.')[2]}: {first_line(last.text)}")


def causes(error: BaseException) -> list[Cause]:
    """Return an exception and what caused it, on both sides: Python's exceptions and those of Spark's process."""
    found: list[Cause] = []
    while error is not None and len(found) < MAX_CAUSES:
        java = _java(error)
        if java is not None:
            return [*found, *java_causes(java)]
        found.append(_cause(error))
        if error.__cause__ is None:
            break
        error = error.__cause__
    return found


def java_causes(throwable: Any) -> list[Cause]:
    """Return a throwable of Spark's process and what caused it."""
    gateway = SparkContext._gateway
    found: list[Cause] = []
    while throwable is not None and len(found) < MAX_CAUSES:
        condition = state = None
        if is_instance_of(gateway, throwable, "org.apache.spark.SparkThrowable"):
            condition, state = throwable.getCondition(), throwable.getSqlState()
        kind, text = throwable.getClass().getName(), throwable.getMessage()
        found.append(Cause(kind, text or "", condition or "", state or ""))
        throwable = throwable.getCause()
    return found


def _java(error: BaseException) -> Any:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return error._origin if isinstance(error, CapturedException) else None


def _cause(error: BaseException) -> Cause:
    if isinstance(error, AnalysisException | ParseException):
        return Cause("org.apache.spark.sql.AnalysisException", str(error), error.getCondition() or "")
    condition = error.getCondition() if isinstance(error, PySparkException) else ""
    return Cause(type(error).__name__, str(error), condition or "")


def realtime_refusal(operators: Sequence[str]) -> str:
    """Return what to tell of operators, in users' words, that real-time mode cannot run."""
    return (
        f"real-time mode cannot run {', '.join(dict.fromkeys(operators))}; it maps, filters and counts in Spark's own"
        ' expressions. Rewrite it so, or declare latency="micro-batch".'
    )


def _real_time(text: str) -> str:
    names = [n.removesuffix("Exec") for n in re.findall(r"\b[\w$]+\.(\w+Exec)\b", text)]
    return realtime_refusal([NOT_REALTIME.get(n, n) for n in names]) if names else first_line(text)


def python_error(text: str) -> str:
    """Return the error at the end of a Python traceback in `text`, with the last line of the user's own code in it."""
    where, said = "", ""
    for line in text.splitlines():
        if (frame := _FRAME.match(line)) and not _ours(frame["file"]):
            where = f" ({Path(frame['file']).name} line {frame['line']}, in {frame['name']})"
        elif not line.startswith((" ", "Traceback", "pyspark.")) and _PYTHON_ERROR.match(line):
            said = line.strip()
    return f"{first_line(said)}{where}" if said else first_line(text)


def raised(error: BaseException) -> str:
    """Return type, words and the user's own line of an exception that a user's function raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _ours(f.filename)]
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return (
        f"{type(error).__name__}: {first_line(str(error))}{where}" if str(error) else f"{type(error).__name__}{where}"
    )


def _ours(file: str) -> bool:
    """Whether a file belongs to Spark or Millstream, not to the user."""
    parts = Path(file).parts
    return bool({"pyspark", "py4j", "site-packages", "pyspark.zip"} & set(parts)) or _SPARK_ROOM in Path(file).parents


def first_line(text: str) -> str:
    """Return the first line of a message, without Spark's codes, cut."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = _CODES.sub("", lines[0]) if lines else "unknown error"
    return line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "…"
