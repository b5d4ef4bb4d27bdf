"""A stream: a function's rows to a topic, continuously, with captured tables joined from their local copies.

Without tables it is one streaming query. With tables the function runs on each micro-batch as a plain frame, beside the tables as
they are when the batch starts: a change that was in the table's topic before an event was taken in is seen by that event. Such a
function must look at one event at a time: an aggregate would start anew with every batch.

Delivery is at least once: after a crash a batch is written again. (Exactly once is to come: see `_write`.)
"""

from __future__ import annotations

from functools import partial
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.settings import MillstreamError
from millstream.spark.analysis import aggregates, called, stateful
from millstream.spark.context import Context
from millstream.spark.kafka import check_key, messages, options
from millstream.spark.tables import frame_of


def start(context: Context, query: Query) -> StreamingQuery:
    """Start a stream's query. Raises MillstreamError when Spark refuses the function or its result lacks the key."""
    return _start_with_tables(context, query) if query.states else _start_plain(context, query)


def _start_plain(context: Context, query: Query) -> StreamingQuery:
    where = str(query)
    result = called(where, query.function, context.source(cast(Topic, query.streams[0])))
    check_key(where, query.output.key, result)
    return (
        context.writer(messages(result, _key(query)), query, "update" if aggregates(result) else "append")
        .format("kafka")
        .options(**options(context.kafka))
        .option("topic", query.output.to)
        .start()
    )


def _start_with_tables(context: Context, query: Query) -> StreamingQuery:
    where = str(query)
    source = context.source(cast(Topic, query.streams[0]))
    result = called(where, query.function, source, *Joined(context, query).frames(source))
    if found := stateful(result):
        raise MillstreamError(
            f"{where}: a stream that joins captured tables looks at one event at a time, but the function uses {found[0]}."
            " Write the joined events to a topic first, and make a view or stream of that topic."
        )
    check_key(where, query.output.key, result)
    write = partial(_write, context, query, Joined(context, query))
    return context.writer(source, query, "append").foreachBatch(write).start()


class Joined:
    """The tables of one query as frames, as they are at each action."""

    def __init__(self, context: Context, query: Query) -> None:
        self._copies = [context.tables[t.name] for t in query.states]

    def frames(self, beside: DataFrame) -> list[DataFrame]:
        """Return the tables with every change that is in their topics now, in the session of the frame they stand beside."""
        return [frame_of(beside.sparkSession, copy) for copy in self._copies]


def _write(context: Context, query: Query, tables: Joined, batch: DataFrame, number: int) -> None:
    """Write one batch. `number` identifies it: what exactly-once delivery will record in the same transaction."""
    result = query.function(batch, *tables.frames(batch))
    (
        messages(result, _key(query))
        .write.format("kafka")
        .options(**options(context.kafka))
        .option("topic", query.output.to)
        .save()
    )


def _key(query: Query) -> str | None:
    return query.output.key[0] if query.output.key else None
