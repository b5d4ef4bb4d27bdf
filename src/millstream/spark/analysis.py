"""What a function made of its inputs, read from Spark's analyzed plan: what is refused before it starts, with what to do.

Only what the function added is looked at: the plan of an input ends at its mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame

from millstream.settings import MillstreamError, Unreachable
from millstream.spark import provenance
from millstream.spark.errors import NOT_REALTIME, first_line, raised, realtime_refusal
from millstream.spark.pickling import not_picklable

INPUT = "_millstream_input"  # the alias that ends the plan of an input
WATERMARK = "spark.watermarkDelayMs"  # Spark's metadata of a column whose old values no longer come

_SOME = 2**40  # any watermark, for asking whether there would be one; so large that it reaches Java as a long

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
# Operators by which one event can make several rows.
_MULTIPLY = {"Generate", "Union", "Expand", "Join"}
# Spark counts these as deterministic, since a micro-batch keeps its time; a batch that real-time mode runs again does not.
_NOW = {"CurrentTimestamp", "CurrentBatchTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"}
# A plan is explained as for batches: real-time mode groups with an operator of its own, so these say nothing of it.
_OF_BATCHES = {"Sort", "ObjectHashAggregate", "SortAggregate"}
# What to write instead of what Spark cannot run as a stream.
_INSTEAD = {
    "Sort": "The rows of a stream have no order: sort where they are read.",
    "GlobalLimit": "A stream has no first rows: keep the best of a window, F.slice(F.sort_array(F.collect_list(…)), -n, n).",
    "Tail": "A stream has no last rows: keep the newest with F.max_by in a window.",
    "Offset": "A stream has no first rows to leave out.",
    "Window": "Window functions look at all rows: group by a window, ms.tumbling(…), and aggregate.",
    "Aggregate": "Group by a window over the topic's event time (ms.tumbling), and declare event_time=… and lateness=… of the"
    " topic; or write the rows to a topic first (@app.stream) and read that.",
    "Join": "Join on an equality and a bound on both event times, and declare event_time=… and lateness=… of both topics.",
}


def as_input(frame: DataFrame) -> DataFrame:
    """Return the frame of an input, marked as one."""
    return frame.alias(INPUT)


def is_input(node: Any) -> bool:
    """Tell whether a node of a plan is the mark that ends an input."""
    return bool(node.nodeName() == "SubqueryAlias" and node.identifier().name() == INPUT)


def _added(plan: Any) -> Iterator[Any]:
    """The operators from the outermost on, without those of the inputs."""
    if is_input(plan):
        return
    yield plan
    for child in items(plan.children()):
        yield from _added(child)


def analyzed(frame: DataFrame) -> Any:
    """Return the frame's analyzed plan, as Spark's own object."""
    return frame._jdf.queryExecution().analyzed()  # type: ignore[operator]


def items(sequence: Any) -> Iterator[Any]:
    """Yield what is in a sequence of Scala's."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def operators(frame: DataFrame) -> list[str]:
    """Return the names of the operators that the function added, in Spark's analyzed plan, from the outermost on."""
    return [str(node.nodeName()) for node in _added(analyzed(frame))]


def stateful(frame: DataFrame) -> list[str]:
    """Return in users' words which operators need more than one row at a time; empty for a function that maps and filters.

    Of a stream only what is over the stream counts: what a function makes of a table first is computed again in each batch.
    """
    plan = analyzed(frame)
    streams = plan.isStreaming()
    found = [state_of(n) if streams else _STATEFUL.get(str(n.nodeName()), "") for n in _added(plan)]
    return [words for words in dict.fromkeys(found) if words]


def state_of(node: Any) -> str:
    """Return in users' words what a node of a plan is that keeps state of a stream, "" for one that keeps none."""
    if not node.isStreaming():
        return ""
    if node.nodeName() == "Join":
        return "a join of two streams" if node.left().isStreaming() and node.right().isStreaming() else ""
    return _STATEFUL.get(str(node.nodeName()), "")


def aggregates(frame: DataFrame) -> bool:
    """Tell whether the function groups, so that a row of its result may change."""
    return not _AGGREGATES.isdisjoint(operators(frame))


def multiplies(frame: DataFrame) -> bool:
    """Tell whether the function may make several rows of one event."""
    return not _MULTIPLY.isdisjoint(operators(frame))


def not_repeatable(frame: DataFrame) -> list[str]:
    """Return the expressions that give another value when a row is computed again, as Spark writes them."""
    return [
        str(e.sql()) for node in _added(analyzed(frame)) for top in items(node.expressions()) for e in _changing(top)
    ]


def _changing(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() in _NOW:
        yield expression
        return
    inner = [found for child in items(expression.children()) for found in _changing(child)]
    if not inner and not expression.deterministic():
        inner = [expression]
    yield from inner


def called(where: str, function: Callable[..., DataFrame], *frames: DataFrame) -> DataFrame:
    """Return what the user's function makes of the frames.

    Raises MillstreamError, beginning with `where`, when the function fails, Spark refuses it or it returns something else;
    Unreachable when it fails on something outside, which may come back.
    """
    try:
        result = function(*frames)
        if isinstance(result, DataFrame):
            result.schema  # noqa: B018 - analysis is lazy; its error belongs here
    except PySparkException as error:
        raise MillstreamError(f"{where}: {first_line(str(error))}") from error
    except Py4JError:
        raise
    except OSError as error:
        raise Unreachable(f"{where}: {raised(error)}") from error
    except Exception as error:
        raise MillstreamError(f"{where}: {not_picklable(error) or raised(error)}") from error
    if not isinstance(result, DataFrame):
        raise MillstreamError(
            f"{where}: the function must return a DataFrame, got {type(result).__name__}. Is a `return` missing?"
        )
    names = provenance.columns(result)
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise MillstreamError(
            f"{where}: the column {twice!r} is there twice. Join on its name (.join(other, {twice!r})), drop one"
            f' (.drop(other.{twice})), or rename one (.withColumnRenamed("{twice}", …)).'
        )
    return result


def output_mode(where: str, frame: DataFrame, wanted: Sequence[str]) -> str:
    """Return the first of the `wanted` output modes ("append", "update") in which Spark runs the frame.

    Raises MillstreamError, beginning with `where`, with Spark's reason and what to do instead when it is none.
    """
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    reason: AnalysisException | None = None
    for mode in wanted:
        try:
            checker.checkForStreaming(analyzed(frame), getattr(modes, mode.capitalize())())
            return mode
        except AnalysisException as error:
            reason = reason or error
    found = operators(frame)
    instead = next((_INSTEAD[name] for name in found if name in _INSTEAD), "")
    raise MillstreamError(f"{where}: {first_line(str(reason)).rstrip('.; ')}. {instead}".rstrip()) from reason


def check_realtime(where: str, frame: DataFrame) -> None:
    """Raise MillstreamError, beginning with `where`, when real-time mode does not run an operator of the frame."""
    logical = [_STATEFUL[n] for n in operators(frame) if n.startswith(("TransformWithState", "FlatMapGroups"))]
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    physical = jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "simple")  # type: ignore[operator]
    names = re.findall(r"^[\s:+\-|*()\d]*([A-Z]\w+)", physical, re.MULTILINE)
    refused = NOT_REALTIME.keys() - _OF_BATCHES
    if found := [*logical, *[NOT_REALTIME[n] for n in names if n in refused]]:
        raise MillstreamError(f"{where}: {realtime_refusal(found)}")


def check_bounded(where: str, frame: DataFrame) -> None:
    """Raise MillstreamError, beginning with `where`, when the state of an operator would grow for ever."""
    for node in _added(analyzed(frame)):
        if not node.isStreaming():
            continue
        match node.nodeName():
            case "Aggregate":
                windows = [g for g in items(node.groupingExpressions()) if _is_window(g)]
                if windows and not any(_has_watermark(g) for g in windows):
                    raise MillstreamError(
                        f"{where}: the window is over a column that is no event time, so no window ever closes and all are kept"
                        ' for ever. Declare the column as the topic\'s: app.topic(…, event_time="…", lateness="…"), and use it.'
                    )
            case "Deduplicate":
                if not any(_has_watermark(key) for key in items(node.keys())):
                    raise MillstreamError(
                        f"{where}: dropDuplicates keeps every value that it saw for ever. Say for how long:"
                        " .dropDuplicatesWithinWatermark([…]) keeps them for the topic's lateness; or add the event time"
                        " to the columns."
                    )
            case "Join":
                if state_of(node):
                    _check_join(where, node, frame.sparkSession._jvm)


def drops_late(frame: DataFrame) -> bool:
    """Tell whether the function has an operator that leaves late rows out: one that keeps state for a time."""
    return any(_goes_by_time(node) for node in _added(analyzed(frame)))


def _goes_by_time(node: Any) -> bool:
    name = str(node.nodeName())
    if name == "Aggregate":
        return any(_has_watermark(g) for g in items(node.groupingExpressions()))
    if name == "Deduplicate":
        return any(_has_watermark(key) for key in items(node.keys()))
    if name == "Join":
        return _is_bounded(node)
    return name == "DeduplicateWithinWatermark" or name.startswith(("FlatMapGroups", "TransformWithState"))


def _check_join(where: str, join: Any, jvm: Any) -> None:
    """Ask Spark of each side's rows up to when it keeps them: an end of the other side's time in terms of theirs says that."""
    if not _is_bounded(join):
        raise MillstreamError(
            f"{where}: the join of two streams has no bound in time, so both are kept for ever. Bound the event"
            ' times of both, for example F.expr("b_at BETWEEN a_at AND a_at + INTERVAL 1 HOUR"), and declare'
            " event_time=… and lateness=… of both topics."
        )
    parts = list(_conjuncts(join.condition().get(), jvm))
    if any(_has_watermark(a) for equal in _equalities(join.condition().get()) for a in items(equal.children())):
        return
    helper, some = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper, jvm.scala.Option.apply
    sides = {"left": (join.left(), join.right()), "right": (join.right(), join.left())}
    for side, (own, other) in sides.items():
        found = (helper.getStateValueWatermark(own.outputSet(), other.outputSet(), some(p), some(_SOME)) for p in parts)
        if not any(watermark.isDefined() for watermark in found):
            raise MillstreamError(
                f"{where}: the join of two streams bounds the times on one end only, so its {side} side is kept for ever:"
                " nothing says how long a partner of such a row may take to come. Bound both ends, for example with"
                ' ms.join_within(a, b, "user", times=("a_at", "b_at"), after="1 hour").'
            )


def _conjuncts(condition: Any, jvm: Any) -> Iterator[Any]:
    match condition.getClass().getSimpleName():
        case "Between":  # one expression until it is run
            expressions = jvm.org.apache.spark.sql.catalyst.expressions
            yield expressions.GreaterThanOrEqual(condition.input(), condition.lower())
            yield expressions.LessThanOrEqual(condition.input(), condition.upper())
        case "And":
            for child in items(condition.children()):
                yield from _conjuncts(child, jvm)
        case _:
            yield condition


def _is_window(expression: Any) -> bool:
    kind = expression.dataType()
    return kind.typeName() == "struct" and list(kind.fieldNames()) == ["start", "end"]


def _has_watermark(expression: Any) -> bool:
    try:
        return bool(expression.metadata().contains(WATERMARK))
    except Py4JError:  # an expression without a name has none
        return False


def _is_bounded(join: Any) -> bool:
    """Whether the join's condition is about event times of both sides: their windows, or one time in terms of the other."""
    if join.condition().isEmpty():
        return False
    condition = join.condition().get()
    if any(_has_watermark(a) for equal in _equalities(condition) for a in items(equal.children())):
        return True
    return sum(_has_watermark(a) for a in items(condition.references().toSeq())) > 1


def _equalities(condition: Any) -> Iterator[Any]:
    match condition.getClass().getSimpleName():
        case "And":
            for child in items(condition.children()):
                yield from _equalities(child)
        case "EqualTo" | "EqualNullSafe":
            yield condition
