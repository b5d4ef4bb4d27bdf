"""The one way from inputs to an output: open the inputs, call the function, start the output."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.names import group
from millstream.app.query import Query
from millstream.spark import fingerprint, positions
from millstream.spark.analysis import called, check_bounded
from millstream.spark.context import Context
from millstream.spark.fingerprint import Fingerprint
from millstream.spark.inputs.topic import events
from millstream.spark.kafka import Ranges, read_range
from millstream.spark.watermark import Watermark


def result(context: Context, query: Query) -> DataFrame:
    """Return what the query's function makes of its inputs, opened now."""
    frames = [import_module(given.spark).open(context, query, given) for given in query.inputs]
    return called(str(query), query.function, *frames)


def plain_inputs(context: Context, query: Query, ranges: Ranges) -> list[DataFrame]:
    """Return the query's inputs as plain frames: of its topics exactly the events of the ranges, its tables as they are now."""
    return [
        events(read_range(context.spark, context.kafka, {given.name: ranges.get(given.name, {})}), cast(Topic, given))
        if given.streams
        else import_module(given.spark).open(context, query, given)
        for given in query.inputs
    ]


def analyse(context: Context, query: Query) -> tuple[DataFrame, Fingerprint]:
    """Return what the query's function makes of its inputs, and what its state depends on; starts nothing.

    Raises MillstreamError, with what to do instead, when Spark cannot run it.
    """
    made = result(context, query)
    check_bounded(str(query), made)
    output = import_module(query.output.spark)
    mode = output.check(context, query, made) if hasattr(output, "check") else ""
    context.check_state(query.name, made)
    return made, fingerprint.of(made, mode)


def again(context: Context, query: Query) -> str:
    """Return what to type to have a query begin again without the state that it has."""
    tables = query.output.tables(context.app, query)
    if tables:
        return f"`millstream views rebuild {tables[0].app}.{tables[0].name} --execute`"
    return f"`millstream groups reset {group(context.app, query.name)} --to earliest --execute`"


def topics(query: Query) -> list[str]:
    """Return the topics whose positions its checkpoint holds."""
    return [i.topic.name for i in query.streams or query.states]


def keeps(context: Context, query: Query, now: Fingerprint) -> bool:
    """Tell whether the query keeps state, or a view that must hold nothing else, so that it cannot be moved."""
    return bool(query.streams) and bool(now.operators or query.output.tables(context.app, query))


def start(context: Context, query: Query) -> StreamingQuery:
    """Start a query. Raises MillstreamError as `analyse` does, and when its state is of another function."""
    where = str(query)
    context.watermarks.pop(query.name, None)
    made, now = analyse(context, query)
    # Only a query that keeps state pays for the times of its partitions.
    if query.streams and now.operators and not query.realtime:
        context.watermarks[query.name] = Watermark()
        made = result(context, query)
    positions.keep(
        context.kafka,
        context.checkpoint(query.name),
        topics(query),
        where,
        state=keeps(context, query, now),
        aside=context.aside(query.name),
    )
    fingerprint.keep(context.checkpoint(query.name), now, where, again(context, query))
    return cast(StreamingQuery, import_module(query.output.spark).start(context, query, made))
