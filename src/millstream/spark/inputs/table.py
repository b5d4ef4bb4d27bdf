"""A captured table as a frame: the local copy that follows its changelog, read again at the start of each micro-batch."""

from __future__ import annotations

from pyspark.sql import DataFrame

from millstream.app.inputs import Table
from millstream.app.query import Query
from millstream.spark import tables
from millstream.spark.context import Context


def open(context: Context, query: Query, table: Table) -> DataFrame:
    """Return the table's rows as a plain frame. Raises Unreachable while its columns are not known yet."""
    return tables.frame(context, table)
