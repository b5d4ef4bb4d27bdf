"""Runs an application's queries: one session, one thread, each query supervised on its own.

A query that fails is started again with back-off; one that fails FAILURES times without finishing a batch in between counts as
failed, says why, and is tried once a minute; one whose function is wrong stays failed. The others go on. Spark tells of
progress through a listener, so nothing is polled: the thread sleeps until a batch has ended, a query has died, a restart is due
or it is told to stop.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app import App
from millstream.app.inputs import Topic
from millstream.app.names import DEAD_LETTERS, group
from millstream.app.query import Query
from millstream.client.groups import commit
from millstream.monitor.status import Reporter
from millstream.settings import MillstreamError, Settings, Unreachable
from millstream.spark import deadletters, late
from millstream.spark.analysis import explain
from millstream.spark.context import Context
from millstream.spark.progress import Facts, Offsets, maybe_late, next_offsets
from millstream.spark.session import local_slots, session, table_folder
from millstream.spark.tables import TableCopies

FAILURES = 5  # in a row, without a batch between them; then a query counts as failed, and is tried only now and then
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 60.0)  # before the second, third, … attempt
FINISH_S = 3.0  # how long a stop waits for batches that are under way
STOP_S = 8.0  # after which a stop does not wait for Spark any longer
ALIVE_S = 5.0  # how often, when nothing else happens, the thread looks whether Spark's process is there

_log = logging.getLogger(__name__)


class SparkDied(MillstreamError):
    """Spark's own process is gone: nothing of the application runs any more."""


@dataclass
class _Job:
    """One query under supervision. `due`: when it is to be started (monotonic seconds); None while it runs or has failed."""

    name: str
    facts: Facts
    start: Callable[[], StreamingQuery]
    record: late.Record | None = None
    query: Query | None = None
    running: StreamingQuery | None = None
    due: float | None = 0.0
    failures: int = 0
    committed: Offsets | None = None


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
    slots = local_slots([i.topic.partitions for q in queries if q.realtime for i in q.streams])
    spark = spark or session(app.name, settings, slots=slots, progress=_say)
    with Reporter(settings.log, app.name) as reporter:
        names = [i.name for q in queries for i in q.states]
        copies = TableCopies(settings.log, names, table_folder(settings), partial(_tell, reporter))
        supervisor = _Supervisor(spark, app.name, settings, copies, reporter, stop)
        try:
            copies.start()
            supervisor.declare(queries, list(app.topics.values()))
            supervisor.run(ready)
        finally:
            copies.close()
            supervisor.shut_down(stop_spark=owned)


class _Supervisor:
    def __init__(
        self,
        spark: SparkSession,
        app: str,
        settings: Settings,
        copies: TableCopies,
        reporter: Reporter,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._app = app
        self._kafka = kafka = settings.log
        self._reporter = reporter
        self._stop = stop
        self._jobs: dict[str, _Job] = {}
        self._by_run: dict[str, _Job] = {}
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._began: set[str] = set()
        self._side = ThreadPoolExecutor(1, thread_name_prefix="millstream-late")
        self._context = Context(
            spark, app, kafka, settings.postgres, settings.data, copies, settings.checkpoints, self._wrote
        )
        self._dropped = settings.data / "dropped" / app
        self._listener = _Listener(self._events, self)
        spark.streams.addListener(self._listener)

    def declare(self, queries: Sequence[Query], topics: Sequence[Topic]) -> None:
        """Note what is to run: the queries, and the one of dead letters."""
        for query in queries:
            facts = Facts("realtime" if query.realtime else "micro-batch")
            self._jobs[query.name] = _Job(
                query.name, facts, partial(import_module(query.output.spark).start, self._context, query), query=query
            )
        if topics:
            start = partial(deadletters.start, self._context, topics)
            self._jobs[DEAD_LETTERS] = _Job(DEAD_LETTERS, Facts("micro-batch", dead=0), start)

    def run(self, ready: Callable[[dict[str, object]], None]) -> None:
        """Start what is due, take in what happens, until told to stop."""
        threading.Thread(target=self._wake_on_stop, name="millstream-stop", daemon=True).start()
        announced = False
        while not self._stop.is_set():
            self._start_due()
            if not announced and all(
                (j.due is None or j.facts.state == "failed") and (j.running is None or j.name in self._began)
                for j in self._jobs.values()
            ):
                announced = True
                ready(self._summary())
            self._take(self._wait_s())

    def _summary(self) -> dict[str, object]:
        failed = {j.name: j.facts.error for j in self._jobs.values() if j.facts.state == "failed"}
        return {"queries": len(self._jobs) - len(failed), **({"failed": failed} if failed else {})}

    def _wait_s(self) -> float:
        now = time.monotonic()
        return min([ALIVE_S, *[max(0.0, j.due - now) for j in self._jobs.values() if j.due is not None]])

    def _take(self, timeout: float) -> None:
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            self._check_alive()
            for job in self._jobs.values():
                self._commit(job)  # again, where the log was away after a query's last batch
            return
        if event is not None:
            event()

    def _wake_on_stop(self) -> None:
        self._stop.wait()
        self._events.put(None)

    def _check_alive(self) -> None:
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            raise SparkDied(
                f"Spark's process ended with code {process.returncode}; its last lines are in the log above."
            )

    def _start_due(self) -> None:
        now = time.monotonic()
        for job in self._jobs.values():
            if job.due is not None and job.due <= now and not self._stop.is_set():
                self._start(job)

    def _start(self, job: _Job) -> None:
        job.due = None
        try:
            job.running = job.start()
        except (MillstreamError, AnalysisException, ParseException) as error:
            self._check_alive()
            self._fail(job, str(error) if isinstance(error, MillstreamError) else explain(error), final=_lasting(error))
            return
        except Py4JNetworkError as error:
            raise SparkDied("Spark's process no longer answers; its last lines are in the log above.") from error
        except Exception as error:
            self._check_alive()
            self._fail(job, explain(error))
            return
        self._by_run[str(job.running.runId)] = job
        if job.query is not None:
            job.record = late.Record(self._dropped / job.name / str(job.running.id))
            job.facts.dropped = job.record.total
        self._report(job)

    def _fail(self, job: _Job, error: str, *, final: bool = False) -> None:
        job.running = None
        job.failures += 1
        job.facts.error = error
        if final:
            job.facts.state = "failed"
            _log.error("query %s failed and stays so: %s", job.name, error)
        else:
            pause = BACKOFF_S[min(job.failures, len(BACKOFF_S)) - 1]
            job.facts.state = "failed" if job.failures >= FAILURES else "restarting"
            job.due = time.monotonic() + pause
            _log.warning("query %s failed, starts again in %.0f s: %s", job.name, pause, error)
        self._report(job)

    def began(self, run: str) -> None:
        """A query has planned its first batch, or found nothing to do."""
        if job := self._by_run.get(run):
            self._began.add(job.name)
            if job.facts.state == "starting":
                job.facts.state = "running"
                self._report(job)

    def progressed(self, run: str, progress: Mapping[str, Any]) -> None:
        """A batch has ended."""
        job = self._by_run.get(run)
        if job is None:
            return
        self._began.add(job.name)
        job.failures = 0
        job.facts.take(progress)
        if job.query and maybe_late(progress):
            self._side.submit(self._count_late, job, progress)
        self._commit(job)
        self._report(job)

    def terminated(self, run: str, error: str | None) -> None:
        """A query has ended, of itself or because it was told to."""
        job = self._by_run.pop(run, None)
        if job is None or self._stop.is_set():
            return
        self._began.add(job.name)
        self._check_alive()
        self._fail(job, explain(RuntimeError(error)) if error else "the query ended by itself", final=_refused(error))

    def _commit(self, job: _Job) -> None:
        """Make the query's position the position of its group, so that its lag is read as everybody's is."""
        if job.facts.offsets == job.committed:
            return
        position = {(t, int(p)): o for t, parts in job.facts.offsets.items() for p, o in parts.items()}
        try:
            commit(self._kafka, group(self._app, job.name), position)
            job.committed = json.loads(json.dumps(job.facts.offsets))
        except MillstreamError as error:  # the position is for people; the checkpoint is what counts
            _log.warning("query %s: its position could not be committed: %s", job.name, error)

    def _count_late(self, job: _Job, progress: Mapping[str, Any]) -> None:
        """In a thread of its own: re-read the batch and count what it dropped."""
        number = progress["batchId"]
        watermark = late.watermark_of(self._context.checkpoint(job.name), number)
        if watermark is None or job.query is None or job.record is None:
            _log.warning("query %s: batch %d dropped late events that can no longer be counted", job.name, number)
            return
        begin, end = next_offsets(progress, "startOffset"), next_offsets(progress)
        ranges = {t: {int(p): (begin.get(t, {}).get(p, 0), to) for p, to in parts.items()} for t, parts in end.items()}
        try:
            batch = late.Batch(number, ranges, watermark)
            rows = late.find(self._spark, self._kafka, job.query, batch).collect()
            job.record.add(batch, [(r.topic, r.partition, r.offset) for r in rows])
        except Exception as error:
            if not self._stop.is_set():
                _log.warning("query %s: late events of batch %d are not counted: %s", job.name, number, explain(error))
            return
        total = job.record.total
        self._events.put(partial(self._counted, job, total))

    def _counted(self, job: _Job, total: int) -> None:
        job.facts.dropped = total
        self._report(job)

    def _wrote(self, query: str, rows: int) -> None:
        self._events.put(partial(self._jobs[query].facts.wrote, rows))

    def _report(self, job: _Job) -> None:
        self._reporter.report("query", job.name, **job.facts.as_dict())

    def shut_down(self, *, stop_spark: bool) -> None:
        """End the queries, letting batches that are under way finish when they are quick, and then Spark if it is ours."""
        self._stop.set()
        deadline = time.monotonic() + STOP_S
        thread = threading.Thread(target=self._end, args=(stop_spark,), name="millstream-end", daemon=True)
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))
        for job in self._jobs.values():
            if job.facts.state != "failed":
                job.facts.state = "stopped"
            self._report(job)

    def _end(self, stop_spark: bool) -> None:
        try:
            running = [j.running for j in self._jobs.values() if j.running is not None]
            batches = [
                j.running for j in self._jobs.values() if j.running is not None and j.facts.mode == "micro-batch"
            ]
            deadline = time.monotonic() + FINISH_S
            while time.monotonic() < deadline and any(q.isActive and q.status["isTriggerActive"] for q in batches):
                time.sleep(0.05)
            enders = [threading.Thread(target=_end, args=(q,), daemon=True) for q in running]
            for ender in enders:
                ender.start()
            for ender in enders:
                ender.join(FINISH_S)
            self._side.shutdown(wait=False, cancel_futures=True)
            self._spark.streams.removeListener(self._listener)
            if stop_spark:
                self._spark.stop()
        except (Py4JError, OSError) as error:
            _log.debug("while stopping: %s", error)  # Spark was gone before


def _end(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        _log.debug("while stopping %s: %s", query.name, error)


class _Listener(StreamingQueryListener):
    """Hands Spark's events to the supervisor's thread."""

    def __init__(self, events: queue.SimpleQueue[Callable[[], None] | None], supervisor: _Supervisor) -> None:
        self._events = events
        self._supervisor = supervisor

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing yet: a query has begun when it has planned a batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended."""
        progress = json.loads(event.progress.json)
        self._events.put(partial(self._supervisor.progressed, str(event.progress.runId), progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """A trigger found nothing to do."""
        self._events.put(partial(self._supervisor.began, str(event.runId)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        self._events.put(partial(self._supervisor.terminated, str(event.runId), event.exception))


def _lasting(error: Exception) -> bool:
    """Whether trying again cannot help: the function or its declaration is wrong."""
    return not isinstance(error, Unreachable) and not isinstance(error.__cause__, Py4JError)


def _refused(error: str | None) -> bool:
    return error is not None and ("STREAMING_REAL_TIME_MODE" in error or "AnalysisException" in error)


def _tell(reporter: Reporter, table: str, facts: Mapping[str, Any]) -> None:
    reporter.report("table", table, **facts)


def _say(file: str, done: int, total: int) -> None:
    if done == total:
        _log.info("fetched %s (%.1f MB)", file, total / 1e6)
