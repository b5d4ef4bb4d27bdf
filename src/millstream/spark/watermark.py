"""The watermark of a query: the time that all partitions of its topics have passed. Pure: progress reports in, times out.

Spark's own is the newest event of all partitions less the lateness. So a partition that is read more slowly than another loses
its rows, though each is in order. Here every partition has its own newest time, which each batch's progress tells (the input
observes it, `spark.inputs.topic`), and the watermark is the lowest of them less their topic's lateness. It never passes what
some partition may still bring in time, in whatever order and at whatever speed partitions and topics are read.

A partition that was read to its end and brought no event for `Topic.idle` holds nothing. When all are so, the newest counts.
Spark takes the time from `advance`: its next batch closes what ends before it and writes it to the offset log, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from millstream.app.inputs import Topic
from millstream.spark.progress import next_offsets

_MS = timedelta(milliseconds=1)


@dataclass
class _Partition:
    """What is known of one partition of an input. Times are epoch milliseconds.

    newest: of its events, None before the first.   seen: when it last brought an event, or had some to read.
    """

    lateness: int
    idle: int | None
    seen: int
    newest: int | None = None

    @property
    def passed(self) -> int | None:
        return None if self.newest is None else self.newest - self.lateness


class Watermark:
    """The watermark of one run of a query. `watch` its inputs, then `take` each progress report and tell when it is `quiet`."""

    def __init__(self) -> None:
        self._inputs: dict[str, Topic] = {}
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._at = 0
        self._highest: int | None = None
        self.told: int | None = None  # what Spark was told last

    def watch(self, topic: Topic) -> str:
        """Add an input; return the name under which its progress reports tell the newest times, by partition."""
        name = f"newest {len(self._inputs)}"
        self._inputs[name] = topic
        return name

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take in the report of a batch (Spark's JSON object)."""
        self.quiet(progress["timestamp"])
        ends, latest = next_offsets(progress), next_offsets(progress, "latestOffset")
        observed = progress.get("observedMetrics", {})
        for name, topic in self._inputs.items():
            newest = observed.get(name, {})
            for number, end in ends.get(topic.name, {}).items():
                partition = self._partition(name, int(number))
                time = newest.get(number)
                if time is not None:
                    partition.newest = time if partition.newest is None else max(partition.newest, time)
                if time is not None or latest.get(topic.name, {}).get(number, end) > end:
                    partition.seen = self._at

    def quiet(self, at: str) -> None:
        """Take in that Spark looked for more at a time (ISO 8601), and found what `take` tells, or nothing."""
        self._at = max(self._at, int(datetime.fromisoformat(at).timestamp() * 1000))

    def time(self) -> int | None:
        """Return the watermark in epoch milliseconds, which never goes back, or None while it is not known."""
        holding = [p for p in self._partitions.values() if p.idle is None or self._at - p.seen < p.idle]
        times = [p.passed for p in holding or self._partitions.values()]
        known = [t for t in times if t is not None]
        told = {name for name, _ in self._partitions}
        if known and told == self._inputs.keys() and (not holding or len(known) == len(times)):
            found = min(known) if holding else max(known)
            self._highest = found if self._highest is None else max(self._highest, found)
        return self._highest

    def _partition(self, name: str, number: int) -> _Partition:
        if (found := self._partitions.get((name, number))) is None:
            topic = self._inputs[name]
            idle = None if topic.idle is None else topic.idle // _MS
            found = self._partitions[name, number] = _Partition(topic.lateness // _MS, idle, self._at)
        return found


def advance(running: StreamingQuery, time: int) -> bool:
    """Have the query's next batch begin with the watermark `time` (epoch milliseconds), unless it is further already.

    Returns False when Spark is just planning a batch, and nothing was done: try again. Spark writes the watermark to the offset
    log with the batch, and starts a batch for it when there is nothing to read.
    """
    execution = running._jsq.streamingQuery()
    lock = execution.awaitProgressLock()  # held while Spark decides on the next batch
    if not lock.tryLock():
        return False
    try:
        tracker = execution.watermarkTracker()
        if tracker is not None and tracker.currentWatermark() < time:
            _forget_idle(execution)
            tracker.setWatermark(time)
    finally:
        lock.unlock()
    return True


def _forget_idle(execution: Any) -> None:
    """Forget the watermark of a batch that Spark only thought about: it keeps one per batch, and fails when it finds another."""
    latest = execution.offsetLog().getLatestBatchId()
    known = _private(_private(execution, "watermarkPropagator"), "batchIdToWatermark")
    while not known.isEmpty() and latest.isDefined() and known.lastKey() > latest.get():
        known.pollLastEntry()


def _private(thing: Any, name: str) -> Any:
    field = thing.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(thing)
