"""What every query of an application shares while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from millstream.app.query import Query
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.spark.analysis import stateful
from millstream.spark.session import Writer, is_local
from millstream.spark.tables import Copies
from millstream.spark.watermark import Watermark
from millstream.stores import folder
from millstream.stores.store import Kept
from millstream.stores.topics import Topics


@dataclass(frozen=True)
class Context:
    """The session, the addresses and the folders of a running application."""

    spark: SparkSession
    app: str
    settings: Settings
    tables: Copies
    wrote: Callable[[str, int], None] = lambda query, rows: None  # told by a query that writes its rows itself
    # What writes topics exactly once, by query; it commits the query's position itself, with the rows.
    topics: dict[str, Topics] = field(default_factory=dict)
    watermarks: dict[str, Watermark] = field(default_factory=dict)  # of the queries that keep state, by query
    views: dict[str, Kept] = field(default_factory=dict)  # the tables that queries keep, by query
    raised: dict[str, BaseException] = field(default_factory=dict)  # what a query's batch function raised last

    @property
    def kafka(self) -> Kafka:
        """The log's address."""
        return self.settings.log

    def checkpoint(self, query: str) -> Path:
        """The folder of a query's checkpoint: offsets, commits and state."""
        return folder.checkpoint(self.settings, self.app, query)

    def aside(self, query: str) -> Path:
        """Where a query's checkpoint goes when another takes its place; the time is added to the name."""
        return folder.aside(self.settings, self.app, query)

    def close(self) -> None:
        """Let go of the connections to what was written. No query may run any more."""
        for view in self.views.values():
            view.close()
        for topics in self.topics.values():
            topics.close()

    def query_id(self, query: str) -> str:
        """The identity of the query's checkpoint, which a new checkpoint changes. Known once the query has started."""
        return str(json.loads((self.checkpoint(query) / "metadata").read_text())["id"])

    def writer(self, frame: DataFrame, query: Query, mode: str) -> DataStreamWriter:
        """Return a stream writer with the query's name, checkpoint and trigger."""
        return self.named(frame, query.name, mode, query.every, realtime=query.realtime)

    def batches(
        self, frame: DataFrame, query: Query, mode: str, write: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        """Start a query whose batches `write` takes: a plain frame, and the number that identifies it."""

        def guarded(batch: DataFrame, number: int) -> None:
            try:
                write(batch, number)
            except BaseException as error:
                self.raised[query.name] = error  # Spark passes on its text alone
                raise

        return self.writer(frame, query, mode).foreachBatch(guarded).start()

    def check_state(self, name: str, frame: DataFrame) -> None:
        """Raise MillstreamError when a query keeps state that would be lost with a cluster's workers."""
        if self.settings.checkpoints is None and not is_local(self.master) and (kept := stateful(frame)):
            raise MillstreamError(
                f"query {name!r} keeps state ({kept[0]}), which the workers of {self.master} would lose with"
                " their disks: give `checkpoints`, a folder that the driver and every worker have under the same path."
            )

    @property
    def master(self) -> str:
        """Where the queries run, as Spark names it."""
        return self.settings.spark or str(self.spark.sparkContext.master)

    def named(
        self, frame: DataFrame, name: str, mode: str, every: timedelta, *, realtime: bool = False
    ) -> DataStreamWriter:
        """Return a stream writer as `writer` does, for a query that no application declares."""
        self.check_state(name, frame)
        interval = f"{max(1, every // timedelta(milliseconds=1))} milliseconds"
        trigger = {"realTime": interval} if realtime else {"processingTime": interval}
        return (
            Writer(frame, name, realtime=realtime)
            .outputMode(mode)
            .option("checkpointLocation", self.checkpoint(name).as_uri())
            .trigger(**trigger)  # type: ignore[call-overload]
        )
