"""What a function made of its input, read from Spark's analyzed plan: whether it groups, and what Spark refuses, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millstream.settings import MillstreamError

# Operators whose answer depends on more than the row at hand.
_STATEFUL = {
    "Aggregate": "an aggregate",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "GlobalLimit": "limit",
    "Offset": "offset",
    "Sort": "sort",
    "Tail": "tail",
    "Window": "a window function",
    "FlatMapGroupsWithState": "applyInPandasWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "TransformWithStateInPySpark": "transformWithState",
}
_AGGREGATES = {"Aggregate", "Distinct"}
# Real-time mode's operators are an allow-list; these are what users meet that is not on it, by the physical operator's name.
_NOT_REALTIME = {
    "BatchEvalPythonExec": "a Python UDF",
    "ArrowEvalPythonExec": "a Python UDF",
    "ArrowEvalPythonUDTFExec": "a Python UDTF",
    "BatchEvalPythonUDTFExec": "a Python UDTF",
    "MapInArrowExec": "mapInArrow",
    "MapInPandasExec": "mapInPandas",
    "StreamingSymmetricHashJoinExec": "a join of two streams",
    "SortMergeJoinExec": "a join that is not a broadcast",
    "BroadcastNestedLoopJoinExec": "a join without an equality",
    "StreamingGlobalLimitExec": "limit",
    "StreamingLocalLimitExec": "limit",
    "LocalLimitExec": "limit",
    "GlobalLimitExec": "limit",
    "SortExec": "sort",
    "WindowExec": "a window function",
    "StreamingDeduplicateWithinWatermarkExec": "dropDuplicatesWithinWatermark",
    "SessionWindowStateStoreRestoreExec": "a session window",
    "TransformWithStateExec": "transformWithState",
    "TransformWithStateInPySparkExec": "transformWithState",
    "FlatMapGroupsWithStateExec": "applyInPandasWithState",
    "ObjectHashAggregateExec": "an aggregate such as percentile or collect_list",
    "HashAggregateExec": "an aggregate",
    "SortAggregateExec": "an aggregate of strings",
}
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Warning|Exit)\b")
_OWN_ERROR = re.compile(r"^millstream\.[\w.]*MillstreamError: ")
_CODES = re.compile(r"^\[[A-Z_.]+\] | *SQLSTATE: \w{5}.*$")
_BEGINNING = re.compile(r"^(org\.[\w.]+(Exception|Error): |Job aborted[^:]*: )+")


def operators(frame: DataFrame) -> list[str]:
    """Return the names of the operators in the frame's analyzed plan, from the outermost on."""
    return [str(node.nodeName()) for node in _nodes(frame._jdf.queryExecution().analyzed())]  # type: ignore[operator]


def stateful(frame: DataFrame) -> list[str]:
    """Return in users' words which operators need more than one row at a time; empty for a function that maps and filters."""
    return [_STATEFUL[name] for name in dict.fromkeys(operators(frame)) if name in _STATEFUL]


def aggregates(frame: DataFrame) -> bool:
    """Tell whether the function groups, so that a row of its result may change."""
    return not _AGGREGATES.isdisjoint(operators(frame))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def called(where: str, function: Callable[..., DataFrame], *frames: DataFrame) -> DataFrame:
    """Return what the user's function makes of the frames.

    Raises MillstreamError, beginning with `where`, when Spark refuses the function or it returns something else.
    """
    try:
        result = function(*frames)
        if isinstance(result, DataFrame):
            result.schema  # noqa: B018 - analysis is lazy; its error belongs here
    except PySparkException as error:
        raise MillstreamError(f"{where}: {explain(error)}") from error
    if not isinstance(result, DataFrame):
        raise MillstreamError(
            f"{where}: the function must return a DataFrame, got {type(result).__name__}. Is a `return` missing?"
        )
    return result


def explain(error: BaseException) -> str:
    """Return what went wrong in one line that a user can act on, from what Spark raised."""
    text = str(error) or type(error).__name__
    if "STREAMING_REAL_TIME_MODE" in text:
        names = re.findall(r"\b[\w.$]+\.(\w+Exec)\b", text)
        what = list(dict.fromkeys(_NOT_REALTIME.get(n, n.removesuffix("Exec")) for n in names))
        if what:
            return (
                f"real-time mode cannot run {', '.join(what)}; it maps, filters and joins small static tables in Spark's"
                ' own expressions. Rewrite it so, or declare latency="micro-batch".'
            )
    if "Return Message: Traceback" in text:
        return _python_error(text)
    if "Query [id" in text and "terminated with exception: " in text:
        text = text.split("terminated with exception: ", 1)[1]
    if "data loss" in text.lower() or "KAFKA_DATA_LOSS" in text:
        return (
            f"events that were not read yet are gone from the topic ({_first_line(text)}). Keep them longer (retention.ms),"
            " or delete the query's checkpoint to begin with what is there."
        )
    return _first_line(text)


def _python_error(text: str) -> str:
    """The last error of the Python traceback that Spark wraps when a function called for each batch fails."""
    lines = text.split("Return Message: Traceback", 1)[1].splitlines()
    errors = [line for line in lines if _PYTHON_ERROR.match(line)]
    return _first_line(_OWN_ERROR.sub("", errors[-1])) if errors else _first_line(text)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = _CODES.sub("", _BEGINNING.sub("", lines[0])) if lines else "unknown error"
    return line if len(line) <= 500 else line[:500] + "…"
