"""Captured tables as frames: plain frames that any query can join, and that are up to date in each of its batches.

Spark plans every micro-batch again from the same logical plan, and asks for the table's list of files (`FileIndex`) when it does.
Ours answers with the files of the local copy (`changelog`) as it is then, so a batch sees every change that was in the changelog
when it began; its size lets Spark choose between a broadcast and a sorted join each time. Nothing goes through Spark's heap but
what a task reads. (A Python data source would not do: its relation asks Python for the partitions once and keeps the answer.)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from millstream.app.inputs import Table
from millstream.settings import Kafka, Unreachable
from millstream.spark.changelog import Reader, Snapshot, TableCopy, Tell
from millstream.spark.rows import TableSchema


class Copy(Protocol):
    """What a frame needs of a table's copy; see TableCopy."""

    @property
    def name(self) -> str: ...

    def schema(self) -> TableSchema: ...

    def snapshot(self, reader: Reader) -> Snapshot: ...


class Copies(Protocol):
    """The copies of an application's tables, by name."""

    def __getitem__(self, name: str) -> Copy: ...


class _Context(Protocol):
    """What a frame needs of the context that all queries share."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def tables(self) -> Copies: ...


class TableCopies:
    """The local copies of an application's tables, each on its own. Start them, close them in the end."""

    def __init__(
        self, kafka: Kafka, tables: Iterable[str], folder: Path, tell: Tell = lambda name, facts: None
    ) -> None:
        """folder: for the copies' files, which every reader of the frames must reach. tell: hears what is known of each copy."""
        self._kafka = kafka
        self._folder = folder
        self._copies = {name: TableCopy(kafka, name, folder / name, tell) for name in sorted(set(tables))}
        self._started = False

    def start(self) -> None:
        """Begin to follow. Topics that do not exist yet, and a log that is away, are waited for."""
        if self._copies and not self._started:
            self._started = True
            for copy in self._copies.values():
                copy.start()

    def close(self) -> None:
        """End all copies, and remove their files."""
        for copy in self._copies.values():
            copy.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __getitem__(self, name: str) -> TableCopy:
        return self._copies[name]


def frame(context: _Context, table: Table) -> DataFrame:
    """Return the table's rows as a plain frame, read again at the start of each micro-batch (and of each action).

    Raises Unreachable while the table's columns are not known. A batch raises it when the copy does not catch up in a minute, or
    when the table's columns are no longer those of this frame: a query that is started again then has the new ones.
    """
    copy = context.tables[table.name]
    return frame_of(context.spark, copy)


def frame_of(spark: SparkSession, copy: Copy) -> DataFrame:
    """Return the frame of one copy; see `frame`."""
    schema = copy.schema()
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    sources = jvm.org.apache.spark.sql.execution.datasources
    columns = jvm.org.apache.spark.sql.types.DataType.fromJson(from_arrow_schema(schema.arrow()).json())
    relation = sources.HadoopFsRelation(
        _Files(spark.sparkContext._gateway, copy, schema),
        jvm.org.apache.spark.sql.types.StructType(),
        columns,
        jvm.scala.Option.empty(),
        sources.parquet.ParquetFileFormat(),
        jvm.scala.Predef.Map().empty(),
        spark._jsparkSession,
    )
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


class _Files:
    """Spark's `FileIndex`, called from its process whenever it plans a read of the table."""

    def __init__(self, gateway: Any, copy: Copy, schema: TableSchema) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._copy = copy
        self._schema = schema
        self._reader = Reader()
        self._status: dict[Path, Any] = {}

    def _snapshot(self) -> Snapshot:
        snapshot = self._copy.snapshot(self._reader)
        if snapshot.schema.columns != self._schema.columns:
            raise Unreachable(
                f"the columns of table {self._copy.name!r} have changed: {_difference(self._schema, snapshot.schema)}."
                " The query starts again with them."
            )
        return snapshot

    def listFiles(self, partitions: Any, data: Any) -> Any:
        """Return the files of the table as it is now, as one partition."""
        fs = self._jvm.org.apache.hadoop.fs
        files = self._snapshot().files
        self._status = {
            path: self._status.get(path) or fs.FileStatus(length, False, 1, 2**27, 0, fs.Path(path.as_uri()))
            for path, length in files
        }
        array = self._array(fs.FileStatus, [self._status[path] for path, _ in files])
        directory = self._jvm.org.apache.spark.sql.execution.datasources.PartitionDirectory
        return self._sequence([directory.apply(self._jvm.org.apache.spark.sql.catalyst.InternalRow.empty(), array)])

    def sizeInBytes(self) -> int:
        """Return about how large the table is in memory."""
        return max(1, self._reader.held[-1].size if self._reader.held else self._snapshot().size)

    def rootPaths(self) -> Any:
        """None: the files are given one by one."""
        return self._sequence([])

    def inputFiles(self) -> Any:
        """Return the files' addresses."""
        return self._array(self._jvm.java.lang.String, [path.as_uri() for path, _ in self._snapshot().files])

    def refresh(self) -> None:
        """Nothing: every question is answered from what is there."""

    def partitionSchema(self) -> Any:
        """No column is taken from a path."""
        return self._jvm.org.apache.spark.sql.types.StructType()

    def isTimeTravel(self) -> bool:
        """It is always the present."""
        return False

    def metadataOpsTimeNs(self) -> Any:
        """Not measured."""
        return self._jvm.scala.Option.empty()

    def toString(self) -> str:
        """Return what a plan shows."""
        return f"table {self._copy.name}"

    def hashCode(self) -> int:
        """One of each frame."""
        return id(self) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        """One of each frame."""
        return other is self

    def _array(self, kind: Any, items: list[Any]) -> Any:
        array = self._gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array

    def _sequence(self, items: list[Any]) -> Any:
        array = self._jvm.java.util.ArrayList()
        for item in items:
            array.add(item)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(array).toSeq()

    class Java:
        implements = ("org.apache.spark.sql.execution.datasources.FileIndex",)


def _difference(old: TableSchema, new: TableSchema) -> str:
    before, after = ({c.name: c.kind for c in s.columns} for s in (old, new))
    words = [f"{name!r} is new" for name in after if name not in before]
    words += [f"{name!r} is gone" for name in before if name not in after]
    words += [f"{n!r} is {after[n]} and was {before[n]}" for n in after if n in before and before[n] != after[n]]
    return ", ".join(words) or "their order is another"
