"""An alert: each row of a function to a topic as soon as possible, in Spark's real-time mode or in micro-batches.

Spark may write a row again after a crash. It therefore goes to the internal topic of candidates, with its identity in the header
`origin`; `deliver` passes each identity on to the alert's own topic once. The identity is the causes of the row (`provenance`)
and, where one event can make several rows, a hash of the row's content: so the content must come out the same again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.names import candidates
from millstream.app.query import Query
from millstream.settings import MillstreamError
from millstream.spark import provenance
from millstream.spark.analysis import check_realtime, multiplies, not_repeatable, output_mode, stateful
from millstream.spark.context import Context
from millstream.spark.kafka import check_key, messages, options
from millstream.spark.provenance import ORIGIN


def start(context: Context, query: Query, result: DataFrame) -> StreamingQuery:
    """Start an alert's query. Raises MillstreamError as `check` does."""
    mode = check(context, query, result)
    rows = _rows(query, result)
    return (
        context.writer(rows, query, mode)
        .format("kafka")
        .options(**options(context.kafka))
        .option("topic", candidates(context.app, query.name))
        .start()
    )


def check(context: Context, query: Query, result: DataFrame) -> str:
    """Return the output mode. Raises MillstreamError when the function lost its causes, or Spark cannot run it."""
    where = str(query)
    check_identity(where, result, multiplies(result))
    check_key(where, query.output.key, result)
    mode = output_mode(where, result, ("update",) if query.realtime else ("append", "update"))
    if query.realtime:
        check_realtime(where, result)
    _rows(query, result)
    return mode


def _rows(query: Query, result: DataFrame) -> DataFrame:
    return messages(provenance.merged(result, str(query)), query.output.key, distinct=multiplies(result))


def check_identity(where: str, result: DataFrame, several: bool) -> None:
    """Raise MillstreamError unless each row can be known again after a crash. several: one event may make several rows."""
    if not provenance.has(result):
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
    if several and (changing := not_repeatable(result)):
        raise MillstreamError(
            f"{where}: one event may make several rows here, which are told apart by their content, and {changing[0]} gives"
            " another value when a row is computed again after a crash. Leave it out, or make one row per event."
        )
