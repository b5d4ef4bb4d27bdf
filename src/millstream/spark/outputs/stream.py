"""A stream: a function's rows to a topic, continuously, each batch exactly once.

A function that groups by windows writes each window once, when it has closed; one that groups otherwise writes a row each time it
changes. A batch and the query's position are one Kafka transaction (`stores.topics`), so that a batch that Spark runs again after
a crash writes nothing. Readers see it whole with `isolation.level=read_committed`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.query import Query
from millstream.spark import provenance
from millstream.spark.analysis import output_mode
from millstream.spark.context import Context
from millstream.spark.kafka import check_key, messages
from millstream.stores.topics import Topics


def start(context: Context, query: Query, result: DataFrame) -> StreamingQuery:
    """Start a stream's query. Raises MillstreamError as `check` does."""
    mode = check(context, query, result)
    rows = _rows(query, result)
    topics = context.topics.setdefault(query.name, Topics(context.kafka, context.app, query.name))
    return context.batches(rows, query, mode, partial(_write, context, query, topics))


def check(context: Context, query: Query, result: DataFrame) -> str:
    """Return the output mode. Raises MillstreamError when Spark cannot run the function or its result lacks the key."""
    where = str(query)
    check_key(where, query.output.key, result)
    _rows(query, result)
    return output_mode(where, result, ("append", "update"))


def _rows(query: Query, result: DataFrame) -> DataFrame:
    return messages(provenance.merged(result, str(query)), query.output.key)


def _write(context: Context, query: Query, topics: Topics, batch: DataFrame, number: int) -> None:
    written = topics.apply(
        {query.output.to: batch.toArrow()},
        query_id=context.query_id(query.name),
        batch_id=number,
        positions=batch_ends(context.checkpoint(query.name), number),
    )
    context.wrote(query.name, written or 0)


def batch_ends(checkpoint: Path, number: int) -> dict[tuple[str, int], int]:
    """Return the offsets behind a batch, by topic and partition, from what Spark notes of it before it is run.

    The file: a version, the batch's facts, then a line per source: {"topic": {"0": 17}}, or "-" for one without news.
    """
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2:]
    sources = [json.loads(line) for line in lines if line.strip() != "-"]
    return {
        (topic, int(p)): offset for source in sources for topic, parts in source.items() for p, offset in parts.items()
    }
