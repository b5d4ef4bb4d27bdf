"""A view: a function's result kept as a table of PostgreSQL, one row per key, always up to date.

Update mode: each batch brings the rows that changed, which are inserted or replaced by key, in one transaction with the batch's
number, so that a batch that Spark runs again after a crash changes nothing. What Spark runs in append mode alone (an aggregate of
aggregates, an outer join of two streams) brings its rows when they are final.

A function that does not group keeps the newest row per key. "Newest" must mean the same in whatever batches the events come, so
the view's key has to contain the topic's key: then all events of a row are in one partition, whose offsets order them.

A function of tables alone is computed again as a whole whenever one of them has changed, and the view takes over the difference:
rows that are no longer there are removed. Its streaming query reads the tables' changelogs, only to know when.
"""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.query import Query
from millstream.settings import MillstreamError
from millstream.spark import pipeline, provenance
from millstream.spark.analysis import aggregates, multiplies, output_mode
from millstream.spark.context import Context
from millstream.spark.kafka import read_stream
from millstream.spark.operators.windows import flat_key, flatten
from millstream.spark.provenance import ORIGIN
from millstream.stores.store import Claim, Store

# Views of one application start side by side, and PostgreSQL's "IF NOT EXISTS" does not keep two from making one schema.
_KEEPING = threading.Lock()


def start(context: Context, query: Query, result: DataFrame) -> StreamingQuery:
    """Start a view's query. Raises MillstreamError as `check` does."""
    where = str(query)
    mode = check(context, query, result)
    key = flat_key(query.output.key, result.schema, where)
    rows = flatten(provenance.merged(result, where))
    columns = _columns(rows)
    if not query.streams:
        table = ViewTable(context, query, key, columns)
        changes = read_stream(context.spark, context.kafka, [t.topic.name for t in query.states])
        return context.batches(changes, query, mode, partial(_write_whole, table, context, query, key))
    grouped = aggregates(result)
    table = ViewTable(context, query, key, columns)
    write = partial(_write_groups, table) if grouped else partial(_write_newest, table, key, multiplies(result))
    return context.batches(rows, query, mode, write)


def check(context: Context, query: Query, result: DataFrame) -> str:
    """Return the output mode. Raises MillstreamError when Spark cannot run the function or the key is no key of its result."""
    where = str(query)
    key = flat_key(query.output.key, result.schema, where)
    columns = _columns(flatten(provenance.merged(result, where)))
    for stored in query.output.tables(context.app, query):
        import_module(stored.store).check(stored.app, stored.name, to_arrow_schema(columns, timezone="UTC"), key)
    if not query.streams:
        return "append"
    mode = output_mode(where, result, ("update", "append"))
    if not aggregates(result):
        check_newest(query, result, where)
    return mode


def _columns(rows: DataFrame) -> T.StructType:
    return T.StructType([f for f in rows.schema.fields if f.name != ORIGIN])


def check_newest(query: Query, result: DataFrame, where: str) -> None:
    """Raise MillstreamError unless the newest row per key is well defined for a function that does not group."""
    if len(query.streams) > 1:
        raise MillstreamError(
            f"{where}: without grouping a view keeps the newest row per key, and events of several topics have no order among"
            ' them. Group by the view\'s key, for example with F.max_by("column", "event time"), or make a view of each topic.'
        )
    topic = cast(Topic, query.streams[0])
    if topic.key is None or topic.key not in query.output.key:
        raise MillstreamError(
            f"{where}: without grouping a view keeps the newest row per key, and only events of one partition have an order;"
            f" so its key must contain the topic's key ({topic.key or 'which ' + repr(topic.name) + ' lacks'})."
            " Add it, or group by the view's key."
        )
    if not provenance.has(result):
        raise MillstreamError(
            f"{where}: without grouping a view keeps the newest row per key, which the column {ORIGIN!r} tells;"
            f" the function dropped it. Keep it: .select({ORIGIN!r}, …). It does not become a column of the view."
        )


def newest(rows: DataFrame, key: tuple[str, ...], *, ties: bool = False) -> DataFrame:
    """Return one row per key, the one with the highest offset, without its causes.

    ties: one event may make several rows of a key; then it is always the same one of them.
    """
    columns = [c for c in provenance.columns(rows) if c not in key]
    row = F.struct(F.lit(0).alias("_"), *[f"`{c}`" for c in columns])
    cause = F.col(ORIGIN) if provenance.one_event(rows) else F.element_at(F.col(ORIGIN), -1)
    rank = F.struct(cause.offset, F.to_json(row)) if ties else cause.offset
    last = F.max_by(row, rank).alias("_last")
    return (
        rows.groupBy(*[f"`{k}`" for k in key])
        .agg(last)
        .select(
            *[F.col(f"_last.`{c}`").alias(c) if c in columns else F.col(f"`{c}`") for c in provenance.columns(rows)]
        )
    )


class ViewTable:
    """The table of one view. Used by the one thread that runs the batches."""

    def __init__(self, context: Context, query: Query, key: tuple[str, ...], rows: T.StructType) -> None:
        """Make the table, or bring it up to `rows`. Raises MillstreamError when the store does not let us, or it is another's."""
        self._context = context
        self._query = query
        [stored] = query.output.tables(context.app, query)
        store: Store = import_module(stored.store)
        claim = Claim.of(context.settings, context.app, query.name)
        if (earlier := context.views.pop(query.name, None)) is not None:
            earlier.close()
        with _KEEPING:
            self._kept = context.views[query.name] = store.keep(
                context.settings,
                stored.name,
                to_arrow_schema(rows, timezone="UTC"),
                key,
                claim,
                f"millstream {context.app}.{query.name}",
            )

    def write(self, rows: pa.Table, number: int, *, whole: bool = False) -> None:
        """Write a batch and its number in one transaction; a batch that is there already changes nothing.

        whole: the rows are all that the view is to hold.
        """
        query_id = self._context.query_id(self._query.name)
        sent = self._kept.apply(rows, query_id=query_id, batch_id=number, whole=whole)
        self._context.wrote(self._query.name, sent or 0)


def _write_groups(table: ViewTable, batch: DataFrame, number: int) -> None:
    table.write(batch.drop(ORIGIN).toArrow(), number)


def _write_newest(table: ViewTable, key: tuple[str, ...], ties: bool, batch: DataFrame, number: int) -> None:
    table.write(newest(batch, key, ties=ties).toArrow(), number)


def _write_whole(
    table: ViewTable, context: Context, query: Query, key: tuple[str, ...], changes: DataFrame, number: int
) -> None:
    """Compute the view again from its tables as they are now, which holds at least the batch's changes."""
    rows = flatten(pipeline.result(context, query)).drop(ORIGIN).toArrow()
    keys = rows.select(list(dict.fromkeys(key))).group_by(list(dict.fromkeys(key))).aggregate([([], "count_all")])
    if keys.num_rows < rows.num_rows:
        raise MillstreamError(
            f"{query}: several rows have the same key ({', '.join(key)}). Group by the view's key, or add to the key what tells"
            " the rows apart."
        )
    table.write(rows, number, whole=True)
