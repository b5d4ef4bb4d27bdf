"""Runs an application's queries: one session, the copies of its tables, and the driver that supervises the queries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from millstream.app import App
from millstream.monitor.status import Reporter
from millstream.settings import Settings
from millstream.spark.context import Context
from millstream.spark.driver import Driver, SparkDied
from millstream.spark.pickling import send_applications_by_value
from millstream.spark.session import local_slots, session, table_folder
from millstream.spark.tables import TableCopies

__all__ = ["SparkDied", "run"]

_log = logging.getLogger(__name__)


def run(
    app: App,
    settings: Settings,
    *,
    ready: Callable[[dict[str, object]], None],
    stop: threading.Event,
    spark: SparkSession | None = None,
) -> None:
    """Run the application's queries until `stop` is set; returns when all have ended. Its topics must exist.

    ready: called once, when every query has begun, with how many run and why others do not.
    spark: a session to use, which stays; without one it is started, and ends with the queries.
    Raises MillstreamError when Spark cannot start, or has died.
    """
    owned = spark is None
    queries = list(app.queries.values())
    slots = local_slots([sum(i.topic.partitions for i in q.streams) for q in queries if q.realtime])
    spark = spark or session(app.name, settings, slots=slots, progress=_say)
    send_applications_by_value()
    with Reporter(settings.log, app.name) as reporter:
        names = [i.name for q in queries for i in q.states]
        copies = TableCopies(settings.log, names, table_folder(settings), partial(_tell, reporter))
        context = Context(spark, app.name, settings, copies)
        driver = Driver(context, reporter, stop)
        try:
            copies.start()
            driver.declare(queries, list(app.topics.values()))
            driver.run(ready)
        finally:
            copies.close()
            driver.shut_down(stop_spark=owned)


def _tell(reporter: Reporter, table: str, facts: Mapping[str, Any]) -> None:
    reporter.report("table", table, **facts)


def _say(file: str, done: int, total: int) -> None:
    if done == total:
        _log.info("fetched %s (%.1f MB)", file, total / 1e6)
