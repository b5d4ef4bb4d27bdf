"""A view: a function's result kept as a table of PostgreSQL, one row per key, always up to date.

Update mode: each batch brings the rows that changed, which are inserted or replaced by key, in one transaction with the batch's
number, so that a batch that Spark runs again after a crash changes nothing. (Complete mode would bring every row each time; what
needs it, such as sorting or an aggregate of aggregates, Spark refuses here and its error says so.)

A function that does not group keeps the newest row per key. "Newest" must mean the same in whatever batches the events come, so
the view's key has to contain the topic's key: then all events of a row are in one partition, whose offsets order them.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.settings import MillstreamError, Settings
from millstream.spark.analysis import aggregates, called
from millstream.spark.context import Context
from millstream.spark.decode import ORIGIN
from millstream.spark.windows import flat_key, flatten
from millstream.stores import postgresql
from millstream.stores.store import Claim


def start(context: Context, query: Query) -> StreamingQuery:
    """Start a view's query. Raises MillstreamError when Spark refuses the function or the key is no key of its result."""
    where = f"view {query.name!r}"
    result = called(where, query.function, context.source(cast(Topic, query.streams[0])))
    key = flat_key(query.output.key, result.schema, where)
    if not aggregates(result):
        check_newest(query, result, where)
    rows = flatten(result)
    table = ViewTable(context, query, key, T.StructType([f for f in rows.schema.fields if f.name != ORIGIN]))
    return context.writer(rows, query, "update").foreachBatch(partial(_write, table, key)).start()


def check_newest(query: Query, result: DataFrame, where: str) -> None:
    """Raise MillstreamError unless the newest row per key is well defined for a function that does not group."""
    topic = cast(Topic, query.streams[0])
    if topic.key is None or topic.key not in query.output.key:
        raise MillstreamError(
            f"{where}: without grouping a view keeps the newest row per key, and only events of one partition have an order;"
            f" so its key must contain the topic's key ({topic.key or 'which ' + repr(topic.name) + ' lacks'})."
            " Add it, or group by the view's key."
        )
    if ORIGIN not in result.columns:
        raise MillstreamError(
            f"{where}: without grouping a view keeps the newest row per key, which the column {ORIGIN!r} tells;"
            f" the function dropped it. Keep it: .select({ORIGIN!r}, …). It does not become a column of the view."
        )


def newest(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return one row per key, the one with the highest offset, without `_origin`."""
    columns = [c for c in rows.columns if c not in key and c != ORIGIN]
    last = F.max_by(F.struct(F.lit(0).alias("_"), *[f"`{c}`" for c in columns]), f"{ORIGIN}.offset").alias("_last")
    return (
        rows.groupBy(*[f"`{k}`" for k in key])
        .agg(last)
        .select(
            *[F.col(f"_last.`{c}`").alias(c) if c in columns else F.col(f"`{c}`") for c in rows.columns if c != ORIGIN]
        )
    )


class ViewTable:
    """The table of one view. Used by the one thread that runs the batches."""

    def __init__(self, context: Context, query: Query, key: tuple[str, ...], rows: T.StructType) -> None:
        """Make the table, or bring it up to `rows`. Raises MillstreamError when the store does not let us, or it is another's."""
        self._context = context
        self._query = query
        self._kept = postgresql.keep(
            Settings(data=context.data, postgres=context.conninfo),
            query.output.to,
            to_arrow_schema(rows, timezone="UTC"),
            key,
            Claim.of(context.data, context.app, query.name),
            f"millstream {context.app}.{query.name}",
        )

    def write(self, rows: pa.Table, number: int) -> None:
        """Write a batch and its number in one transaction; a batch that is there already changes nothing."""
        sent = self._kept.apply(rows, query_id=self._context.query_id(self._query.name), batch_id=number)
        self._context.wrote(self._query.name, sent or 0)


def _write(table: ViewTable, key: tuple[str, ...], batch: DataFrame, number: int) -> None:
    rows = newest(batch, key) if ORIGIN in batch.columns else batch
    table.write(rows.toArrow(), number)
