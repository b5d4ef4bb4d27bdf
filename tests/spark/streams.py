"""A stream of text that a test feeds by hand: each `add` is one batch of a query."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


class Memory:
    """`frame` has one column, `value`. Give each stream of a query a number of its own."""

    def __init__(self, spark: SparkSession, number: int = 1) -> None:
        self._jvm = jvm = spark._jvm
        self._stream = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream(
            number,
            spark._jsparkSession,
            jvm.scala.Option.apply(None),
            jvm.org.apache.spark.sql.Encoders.STRING(),
        )
        self.frame = DataFrame(self._stream.toDF(), spark)

    def add(self, *rows: str) -> None:
        """Make a batch ready."""
        array = self._jvm.java.util.ArrayList()
        for row in rows:
            array.add(row)
        self._stream.addData(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(array).toSeq())
