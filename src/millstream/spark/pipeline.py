"""The one way from inputs to an output: open the inputs, call the function, start the output."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.spark import positions
from millstream.spark.analysis import called, check_bounded, stateful
from millstream.spark.context import Context
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


def start(context: Context, query: Query) -> StreamingQuery:
    """Start a query. Raises MillstreamError, with what to do instead, when Spark cannot run it."""
    where = str(query)
    context.watermarks.pop(query.name, None)
    made = result(context, query)
    check_bounded(where, made)
    if (
        query.streams and not query.realtime and stateful(made)
    ):  # only such a query pays for the times of its partitions
        context.watermarks[query.name] = Watermark()
        made = result(context, query)
    kept = bool(query.streams) and (bool(stateful(made)) or bool(query.output.tables(context.app, query)))
    positions.keep(
        context.kafka,
        context.checkpoint(query.name),
        [i.topic.name for i in query.streams or query.states],
        where,
        state=kept,
        aside=context.aside(query.name),
    )
    return cast(StreamingQuery, import_module(query.output.spark).start(context, query, made))
