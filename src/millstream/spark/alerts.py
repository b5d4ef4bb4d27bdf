"""An alert: each row of a function to a topic as soon as possible, in Spark's real-time mode or in micro-batches.

Spark may write a row again after a crash. It therefore goes to the internal topic of candidates, with the identity of the event
that caused it in the header `origin`; `deliver` passes each identity on to the alert's own topic once.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.names import candidates
from millstream.app.query import Query
from millstream.settings import MillstreamError
from millstream.spark.analysis import called, stateful
from millstream.spark.context import Context
from millstream.spark.decode import ORIGIN
from millstream.spark.kafka import check_key, messages, options


def start(context: Context, query: Query) -> StreamingQuery:
    """Start an alert's query. Raises MillstreamError when the function lost `_origin` or Spark refuses it."""
    where = f"alert {query.name!r}"
    result = called(where, query.function, context.source(cast(Topic, query.streams[0]), realtime=query.realtime))
    if ORIGIN not in result.columns:
        grouped = stateful(result)
        raise MillstreamError(
            f"{where}: the result lacks the column {ORIGIN!r}, which names the event that caused a row and without which"
            " repeats after a crash cannot be told from new alerts."
            + (
                f" It is lost in {grouped[0]}: keep it with F.max_by({ORIGIN!r}, …).alias({ORIGIN!r}), or make a view."
                if grouped
                else f" Keep it: .select({ORIGIN!r}, …)."
            )
        )
    check_key(where, query.output.key, result)
    rows = messages(result, query.output.key[0] if query.output.key else None)
    return (
        context.writer(rows, query, "update")
        .format("kafka")
        .options(**options(context.kafka))
        .option("topic", candidates(context.app, query.name))
        .start()
    )
