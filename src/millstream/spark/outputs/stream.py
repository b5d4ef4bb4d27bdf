"""A stream: a function's rows to a topic, continuously.

A function that groups by windows writes each window once, when it has closed; one that groups otherwise writes a row each time it
changes. Delivery is at least once: after a crash a batch is written again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.query import Query
from millstream.spark import provenance
from millstream.spark.analysis import output_mode
from millstream.spark.context import Context
from millstream.spark.kafka import check_key, messages, options


def start(context: Context, query: Query, result: DataFrame) -> StreamingQuery:
    """Start a stream's query. Raises MillstreamError when Spark cannot run the function or its result lacks the key."""
    where = str(query)
    check_key(where, query.output.key, result)
    mode = output_mode(where, result, ("append", "update"))
    rows = messages(provenance.merged(result, where), query.output.key)
    return (
        context.writer(rows, query, mode)
        .format("kafka")
        .options(**options(context.kafka))
        .option("topic", query.output.to)
        .start()
    )
