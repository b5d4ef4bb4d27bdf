"""Supervises an application's queries: each on its own, in one thread that never waits for anything but news.

A query that fails is started again with back-off; one that fails FAILURES times without finishing a batch in between counts as
failed, says why, and is tried once a minute; one whose declaration is wrong stays failed. The others go on. Spark tells of
progress through a listener, so nothing is polled: the thread sleeps until a batch has ended, a query has died, a restart is due
or it is asked to stop. What takes long (starting a query, committing a position, looking for late rows or for the event on which
a function fails) runs beside it, and comes back as news.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.app.names import DEAD_LETTERS
from millstream.app.query import Query
from millstream.monitor.status import Reporter
from millstream.settings import MillstreamError
from millstream.spark import culprit, late, pipeline
from millstream.spark.commits import Commits
from millstream.spark.context import Context
from millstream.spark.errors import Blame, Failure, failure, java_causes, judge
from millstream.spark.listener import Listener
from millstream.spark.outputs import dead_letters
from millstream.spark.progress import Facts, maybe_late, next_offsets
from millstream.spark.watermark import Watermark, advance
from millstream.stores.topics import Fenced

FAILURES = 5  # in a row, without a batch between them; then a query counts as failed, and is tried only now and then
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 60.0)  # before the second, third, … attempt
FINISH_S = 3.0  # how long a stop waits for batches that are under way
STOP_S = 8.0  # after which a stop does not wait for Spark any longer
ADVANCES = 20  # attempts to tell Spark a watermark while it plans a batch; then with the next report
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
    noted: float = 0.0  # when the record last said up to where everything is known (monotonic seconds)
    running: StreamingQuery | None = None
    due: float | None = 0.0
    starting: bool = False
    failures: int = 0


class Driver:
    """The queries of one application. `declare` them, `run` until told to stop, then `shut_down`."""

    def __init__(self, context: Context, reporter: Reporter, stop: threading.Event) -> None:
        self._context = replace(context, wrote=self._wrote)
        self._spark = context.spark
        self._reporter = reporter
        self._stop = stop
        self._jobs: dict[str, _Job] = {}
        self._by_run: dict[str, _Job] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._began: set[str] = set()
        self._side = ThreadPoolExecutor(1, thread_name_prefix="millstream-late")
        self._commits = Commits(context.kafka, context.app)
        self._dropped = context.settings.data / "dropped" / context.app
        self._listener = Listener(self._events.put, self)
        self._spark.streams.addListener(self._listener)

    def declare(self, queries: Sequence[Query], topics: Sequence[Topic]) -> None:
        """Note what is to run: the queries, and the one of dead letters."""
        for query in queries:
            facts = Facts("realtime" if query.realtime else "micro-batch")
            start = partial(pipeline.start, self._context, query)
            self._jobs[query.name] = _Job(query.name, facts, start, query=query)
        if topics:
            start = partial(dead_letters.start, self._context, topics)
            self._jobs[DEAD_LETTERS] = _Job(DEAD_LETTERS, Facts("micro-batch", dead=0), start)

    def run(self, ready: Callable[[dict[str, object]], None]) -> None:
        """Start what is due, take in what happens, until told to stop. Raises SparkDied when Spark's process is gone."""
        threading.Thread(target=self._wake_on_stop, name="millstream-stop", daemon=True).start()
        announced = False
        while not self._stop.is_set():
            self._start_due()
            if not announced and all(map(self._settled, self._jobs.values())):
                announced = True
                ready(self._summary())
            try:
                event = self._events.get(timeout=self._wait_s())
            except queue.Empty:
                self._check_alive()
            else:
                event()

    def _settled(self, job: _Job) -> bool:
        """Whether a query has begun, or is known not to."""
        if job.facts.state == "failed":
            return True
        return not job.starting and job.due is None and job.name in self._began

    def _summary(self) -> dict[str, object]:
        failed = {j.name: j.facts.error for j in self._jobs.values() if j.facts.state == "failed"}
        return {"queries": len(self._jobs) - len(failed), **({"failed": failed} if failed else {})}

    def _wait_s(self) -> float:
        now = time.monotonic()
        return min([ALIVE_S, *[max(0.0, j.due - now) for j in self._jobs.values() if j.due is not None]])

    def _wake_on_stop(self) -> None:
        self._stop.wait()
        self._events.put(lambda: None)

    def _check_alive(self) -> None:
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            raise SparkDied(
                f"Spark's process ended with code {process.returncode}; its last lines are in the log above."
            )

    def _start_due(self) -> None:
        now = time.monotonic()
        for job in self._jobs.values():
            if job.due is not None and job.due <= now:
                job.due, job.starting = None, True
                threading.Thread(target=self._start, args=(job,), name=f"start {job.name}", daemon=True).start()

    def _start(self, job: _Job) -> None:
        """In a thread of its own: a start waits for the log, tables and stores, and other queries must not wait with it."""
        try:
            running = job.start()
        except BaseException as error:
            self._events.put(partial(self._not_started, job, error))
            return
        self._events.put(partial(self._started, job, running))
        if self._stop.is_set():
            _end(running)  # the driver may no longer look at the news

    def _not_started(self, job: _Job, error: BaseException) -> None:
        job.starting = False
        self._check_alive()
        if isinstance(error, Py4JNetworkError):
            raise SparkDied("Spark's process no longer answers; its last lines are in the log above.") from error
        self._fail(job, failure(error))

    def registered(self, name: str, query: str, run: str) -> None:
        """A query is about to run: what is reported of it from now on has its run's id."""
        job = self._jobs.get(name)
        if job is None or not job.starting:  # of another application on the same session
            return
        self._by_run[run] = job
        if job.query is not None:
            job.record = late.Record(self._dropped / name / query)
            job.facts.dropped = job.record.total
            if job.name in self._context.watermarks:
                self._side.submit(self._look_again, job)
            self._report_late()

    def _started(self, job: _Job, running: StreamingQuery) -> None:
        job.starting, job.running = False, running
        self._report(job)
        if not running.isActive:  # its end was news before this
            self.terminated(str(running.runId))

    def _fail(self, job: _Job, failure: Failure) -> None:
        job.running = None
        job.failures += 1
        job.facts.error = failure.text
        if failure.blame is Blame.DECLARATION:
            job.facts.state = "failed"
            _log.error("query %s failed and stays so: %s", job.name, failure.text)
        else:
            pause = BACKOFF_S[min(job.failures, len(BACKOFF_S)) - 1]
            job.facts.state = "failed" if job.failures >= FAILURES else "restarting"
            job.due = time.monotonic() + pause
            _log.warning("query %s failed, starts again in %.0f s: %s", job.name, pause, failure.text)
        if failure.blame is Blame.EVENT and job.failures == FAILURES:
            self._side.submit(self._find_event, job, failure.text)
        self._report(job)

    def began(self, run: str, at: str) -> None:
        """A query found nothing to do when it looked, at a time in ISO 8601."""
        if job := self._by_run.get(run):
            if watermark := self._context.watermarks.get(job.name):
                watermark.quiet(at)
                self._advance(job, watermark)
            self._began.add(job.name)
            if job.facts.state != "running":
                job.facts.state, job.facts.error = "running", None
                self._report(job)

    def progressed(self, run: str, progress: Mapping[str, Any]) -> None:
        """A batch has ended."""
        job = self._by_run.get(run)
        if job is None:
            return
        self._began.add(job.name)
        job.failures = 0
        job.facts.take(progress)
        watermark = self._context.watermarks.get(job.name)
        if watermark is not None:
            watermark.take(progress)
            self._advance(job, watermark)
        if job.query and maybe_late(progress):
            self._side.submit(self._count_late, job, progress)
        elif watermark and time.monotonic() - job.noted > late.JUDGED_S:
            job.noted = time.monotonic()
            self._side.submit(self._judge, job, late.Batch(progress["batchId"], {}, 0), certain=True)
        if job.name not in self._context.topics:
            self._commits.put(job.name, job.facts.offsets)
        self._report(job)

    def _advance(self, job: _Job, watermark: Watermark) -> None:
        time_ms = watermark.time()
        if job.running is None or time_ms is None or time_ms == watermark.told:
            return
        try:
            for _ in range(ADVANCES):
                if advance(job.running, time_ms):
                    watermark.told = time_ms
                    return
                time.sleep(0.005)
        except Py4JError as error:  # it has ended, which is news by itself
            _log.debug("query %s: its watermark was not moved: %s", job.name, error)

    def terminated(self, run: str) -> None:
        """A query has ended, of itself or because it was told to."""
        job = self._by_run.get(run)
        if job is None or job.starting or self._stop.is_set():
            return
        del self._by_run[run]
        self._began.add(job.name)
        self._check_alive()
        self._fail(job, self._why(job))

    def _why(self, job: _Job) -> Failure:
        raised = self._context.raised.pop(job.name, None)
        if raised is not None:  # by our own code, for a batch: what is wrong with a batch, the next attempt may mend
            why = failure(raised)
            lasting = why.blame is Blame.EVENT or isinstance(raised, Fenced)
            return why if lasting else Failure(why.text)
        assert job.running is not None
        thrown = job.running._jsq.exception()
        if not thrown.isDefined():
            return Failure("the query ended by itself")
        return judge(java_causes(thrown.get()))

    def _count_late(self, job: _Job, progress: Mapping[str, Any]) -> None:
        """In a thread of its own: re-read the batch and count what it dropped."""
        number = progress["batchId"]
        watermark = late.watermark_of(self._context.checkpoint(job.name), number)
        if watermark is None:
            _log.warning("query %s: batch %d dropped late events that can no longer be counted", job.name, number)
            return
        ranges = late.between(next_offsets(progress, "startOffset"), next_offsets(progress))
        self._judge(job, late.Batch(number, ranges, watermark), certain=True)

    def _look_again(self, job: _Job) -> None:
        """In a thread of its own: count what batches dropped that ended when this process's predecessor was killed."""
        if job.record is None:
            return
        for batch in late.since(self._context.checkpoint(job.name), job.record.judged):
            self._judge(job, batch, certain=False)

    def _judge(self, job: _Job, batch: late.Batch, *, certain: bool) -> None:
        """In a thread of its own: count what a batch dropped. Without ranges it is known to have dropped nothing."""
        if job.record is None or job.query is None:
            return
        try:
            rows = late.find(self._context, job.query, batch, certain=certain).collect() if batch.ranges else []
            job.record.add(batch, [(r.topic, r.partition, r.offset) for r in rows])
        except Exception as error:
            job.record.missed = True
            if not self._stop.is_set():
                text = failure(error).text
                _log.warning(
                    "query %s: late events of batch %d are not counted before its next start: %s",
                    job.name,
                    batch.number,
                    text,
                )
            return
        self._events.put(partial(self._counted, job, job.record.total))

    def _counted(self, job: _Job, total: int) -> None:
        if job.facts.dropped != total:
            job.facts.dropped = total
            self._report(job)
            self._report_late()

    def _report_late(self) -> None:
        """Say how many input rows any query dropped, each once."""
        records = [job.record for job in self._jobs.values() if job.record is not None]
        self._reporter.report("late", "rows", dropped=late.distinct(records))

    def _find_event(self, job: _Job, text: str) -> None:
        """In a thread of its own: find the event on which the query's function fails."""
        try:
            found = culprit.find(self._context, job.query) if job.query else None
        except Exception as error:
            _log.warning("query %s: the event on which it fails was not found: %s", job.name, failure(error).text)
            return
        if found:
            self._events.put(partial(self._found, job, f"{text}; it fails on the event {found}"))

    def _found(self, job: _Job, text: str) -> None:
        if job.facts.state == "failed":
            job.facts.error = text
            _log.error("query %s: %s", job.name, text)
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
        self._commits.close()
        self._context.close()
        for job in self._jobs.values():
            if job.facts.state != "failed":
                job.facts.state = "stopped"
            self._report(job)

    def _end(self, stop_spark: bool) -> None:
        try:
            self._take_started()
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

    def _take_started(self) -> None:
        """Count in the queries whose start was news that nobody read any more."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, partial) and event.func == self._started:
                event()


def _end(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:
        _log.debug("while stopping %s: %s", query.name, error)
