"""One delivery from opening to end: learns what was written, then passes rows from the feed to the sink."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream.app.query import Delivery
from millstream.client.admin import end_offsets, start_offsets, topic_names
from millstream.client.connect import config
from millstream.client.groups import committed
from millstream.deliver import failpoints
from millstream.deliver.feed import Feed, Reader
from millstream.deliver.progress import Saved
from millstream.deliver.seen import Seen
from millstream.deliver.sink import MAX_OPEN, Place, Row, Sink
from millstream.monitor.status import Reporter
from millstream.settings import Kafka, MillstreamError

COMMIT_S = 1.0  # how often progress is committed; after a crash that much is read again (and recognised)
SETTLE_S = 1.0  # how long a killed predecessor's last messages may be under way before the sink is read back
TOPIC_S = 30.0  # how long topics and sinks may take to appear
CLOSE_S = 10.0  # how long the last rows may take to be acknowledged when the end is asked for
LATENCIES = 1_000  # the last so many are summarised in the status
_IDLE_POLL_S = 0.5  # how soon a stop is noticed; data wakes the poll at once
_BUSY_POLL_S = 0.02  # the same while acknowledgements are awaited, which do not wake it
# How long the broker holds a fetch that finds nothing; a partition assigned a moment later waits for it once.
_FETCH_MS = 250

_log = logging.getLogger(__name__)


class Session:
    """Passes the candidates of a delivery on to its sink. Use from one thread: `open`, `run`, `close`."""

    def __init__(self, delivery: Delivery, kafka: Kafka, reporter: Reporter) -> None:
        self._delivery = delivery
        self._kafka = kafka
        self._reporter = reporter
        self._sink: Sink = import_module(delivery.sink.deliver).connect(delivery, kafka)
        self._feed: Feed | None = None
        self._forwarded = 0
        self._latencies: deque[float] = deque(maxlen=LATENCIES)

    def open(self, wait: Callable[[float], bool]) -> bool:
        """Learn what was written and mark the delivery as open. `wait(seconds)` returns True when the end is asked for.

        Returns False when the end came first. Raises MillstreamError when a topic or the sink does not exist.
        """
        if not self._wait_for_both_ends(wait):
            return False
        position, saved = _last(self._kafka, self._delivery)
        if saved.open and wait(SETTLE_S):
            return False
        self._feed = Feed(
            self._delivery.candidates,
            self._delivery.group,
            self._kafka,
            self._consumer,
            position,
            Seen(saved.bounds),
            self._sink.written_before,
        )
        self._sink.open()
        if not self._feed.mark(open=True, seconds=CLOSE_S):
            raise self._feed.explain(
                self._feed.refused or KafkaError(KafkaError._TIMED_OUT),
                f"progress cannot be committed to the group {self._delivery.group!r}",
            )
        failpoints.reach(failpoints.MARKED)
        self._feed.begin()
        self._report("running")
        return True

    def run(self, ended: Callable[[], bool]) -> None:
        """Pass on until `ended()`, then wait for what is under way and mark the delivery as closed.

        Raises Interrupted when this session cannot go on, MillstreamError when no session could.
        """
        feed, sink = self._feed, self._sink
        if feed is None:
            return
        due = time.monotonic() + COMMIT_S
        while not ended():
            if (row := feed.next(_BUSY_POLL_S if feed.open else _IDLE_POLL_S)) is not None:
                feed.sending(row)
                sink.send(row, partial(self._done, row, time.time()))
                failpoints.reach(failpoints.WRITTEN)
            sink.poll(0)
            while feed.open >= MAX_OPEN and not ended():
                sink.poll(_BUSY_POLL_S)
            if (now := time.monotonic()) >= due:
                due = now + COMMIT_S
                feed.commit()
                self._report("running")
        sink.flush(CLOSE_S)
        if not feed.open:
            # If that fails it is left open, and the next start waits a second for nothing.
            feed.mark(open=False, seconds=CLOSE_S)
        self._report("stopped")

    def close(self) -> None:
        """Let go of the connections; what is under way is left to its fate, as in a crash."""
        self._sink.close()
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _done(self, row: Row, sent: float, place: Place, took: float) -> None:
        self._latencies.append(sent - row.raised + took)
        cast(Feed, self._feed).done(row, place)
        self._forwarded += 1

    def _consumer(self, on_commit: Callable[[KafkaError | None, list[TopicPartition]], None]) -> Reader:
        made = Consumer(
            config(
                self._kafka,
                group_id=self._delivery.group,  # for commits; the partitions are assigned by hand, as there is one process
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=_FETCH_MS,
                # Closing waits for a commit that a stalled broker does not answer.
                socket_timeout_ms=int(CLOSE_S * 1000),
            )
            | {"on_commit": on_commit}
        )
        return cast(Reader, made)

    def _wait_for_both_ends(self, wait: Callable[[float], bool]) -> bool:
        deadline = time.monotonic() + TOPIC_S
        while missing := self._missing():
            if time.monotonic() > deadline:
                raise MillstreamError(
                    f"alerts cannot be delivered: there is no topic {' or '.join(missing)} at"
                    f" {self._kafka.bootstrap}; `millstream plan` shows which topics the application needs."
                )
            if wait(0.2):
                return False
        return True

    def _missing(self) -> list[str]:
        candidates = self._delivery.candidates
        absent = [] if candidates in topic_names(self._kafka) else [candidates]
        lacking = self._sink.lacking()
        return [*absent, lacking] if lacking else absent

    def _report(self, state: str) -> None:
        latencies = sorted(self._latencies)
        self._reporter.report(
            "deliver",
            self._delivery.query,
            state=state,
            to=self._sink.to,
            forwarded=self._forwarded,
            suppressed=self._feed.suppressed if self._feed is not None else 0,
            latency_ms=_ms(latencies, 0.5),
            latency_p99_ms=_ms(latencies, 0.99),
        )


def _last(kafka: Kafka, delivery: Delivery) -> tuple[dict[int, int], Saved]:
    """Return where to begin in each partition of the candidates, and what the last process left beside it."""
    known = committed(kafka, delivery.group)
    begin = start_offsets(kafka, [delivery.candidates])
    end = end_offsets(kafka, [delivery.candidates])
    position = {}
    for (topic, partition), first in begin.items():
        offset = known[topic, partition].offset if (topic, partition) in known else first
        # Before the start: retention was faster than we. Behind the end: the topic was made again. Both: all that is there.
        position[partition] = offset if first <= offset <= end[topic, partition] else first
        if offset != position[partition]:
            _log.warning("%s [%d] no longer has offset %d; delivery continues at %d", topic, partition, offset, first)
    first_partition = known.get((delivery.candidates, 0))
    return position, Saved.parse(first_partition.metadata) if first_partition else Saved()


def _ms(latencies: list[float], quantile: float) -> float | None:
    """A quantile of sorted seconds, in milliseconds; the clocks of two machines may make it negative, which says nothing."""
    return max(0.0, round(latencies[int(quantile * (len(latencies) - 1))] * 1000, 1)) if latencies else None
