"""One delivery from opening to end: reads back what was written, then forwards candidates. `alerts.py` says why it is exact."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from millstream.client.admin import end_offsets, start_offsets, topic_names
from millstream.client.connect import config, explain, is_refusal, refused
from millstream.client.groups import committed
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.deliver import failpoints
from millstream.deliver.progress import Progress, Saved
from millstream.deliver.seen import MAX_HISTORY, Bounds, Origin, Seen, Verdict
from millstream.monitor.status import Reporter
from millstream.settings import Kafka, MillstreamError

ORIGIN = "origin"  # header of candidates and alerts: "<topic>-<partition>-<offset>" of the cause
QUERY = "query"  # header that tells one query's alerts from another's in the same topic: the candidates' topic

COMMIT_S = 1.0  # how often progress is committed; after a crash that much is read again (and recognised)
SETTLE_S = 1.0  # how long a killed predecessor's last messages may be under way before the topic is read back
TOPIC_S = 30.0  # how long the topics may take to appear
CLOSE_S = 10.0  # how long the last alerts may take to be acknowledged when the end is asked for
MAX_OPEN = 5_000  # alerts on their way; no candidate is read beyond, so a broker that is away fills no memory
LATENCIES = 1_000  # the last so many are summarised in the status
_IDLE_POLL_S = 0.5  # how soon a stop is noticed; data wakes the poll at once
_BUSY_POLL_S = 0.02  # the same while acknowledgements are awaited, which do not wake it
_FETCH_MS = (
    250  # how long the broker holds a fetch that finds nothing; a partition assigned a moment later waits for it once
)

_log = logging.getLogger(__name__)


class Interrupted(Exception):
    """The log broke off this session (a lost producer, a lost topic): another one, begun as after a crash, may go on."""


class Session:
    """Forwards the candidates in one topic to one alert's topic. Use from one thread: `open`, `run`, `close`."""

    def __init__(self, name: str, candidates: str, to: str, group: str, kafka: Kafka, reporter: Reporter) -> None:
        self._name = name
        self._candidates = candidates
        self._to = to
        self._group = group
        self._kafka = kafka
        self._reporter = reporter
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._seen = Seen()
        self._progress = Progress({})
        self._failure: KafkaError | None = None
        self._refused_commit: KafkaError | None = None
        self._committed: tuple[dict[int, int], str] | None = None
        self._forwarded = self._suppressed = 0
        self._latencies: deque[float] = deque(maxlen=LATENCIES)

    def open(self, wait: Callable[[float], bool]) -> bool:
        """Learn what was written and mark the delivery as open. `wait(seconds)` returns True when the end is asked for.

        Returns False when the end came first. Raises MillstreamError when a topic does not exist.
        """
        if not self._wait_for_topics(wait):
            return False
        position, saved = self._last()
        if saved.open and wait(SETTLE_S):
            return False
        self._seen = Seen(saved.bounds)
        for origin, partition, offset in self._read_back(saved.bounds):
            self._seen.written(origin, partition, offset)
        failpoints.reach(failpoints.RECOVERED)
        self._progress = Progress(position)
        self._consumer = Consumer(
            config(
                self._kafka,
                group_id=self._group,  # for commits; the partitions are assigned by hand, as there is one process
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=_FETCH_MS,
                socket_timeout_ms=int(
                    CLOSE_S * 1000
                ),  # closing waits for a commit that a stalled broker does not answer
            )
            | {"on_commit": self._on_commit}
        )
        self._producer = producer(
            self._kafka,
            linger_ms=0,
            socket_nagle_disable=True,
            message_timeout_ms=0,  # a message may wait for the broker's return; giving it up would mean to start again
            queue_buffering_max_messages=2 * MAX_OPEN,
        )
        if not self._mark(open=True):
            raise self._explain(
                self._refused_commit or KafkaError(KafkaError._TIMED_OUT),
                f"progress cannot be committed to the group {self._group!r}",
            )
        failpoints.reach(failpoints.MARKED)
        self._consumer.assign([TopicPartition(self._candidates, p, offset) for p, offset in position.items()])
        self._report("running")
        return True

    def run(self, ended: Callable[[], bool]) -> None:
        """Forward until `ended()`, then wait for what is under way and mark the delivery as closed.

        Raises Interrupted when this session cannot go on, MillstreamError when no session could.
        """
        if self._consumer is None or self._producer is None:
            return
        due = time.monotonic() + COMMIT_S
        while not ended():
            message = self._consumer.poll(_BUSY_POLL_S if self._progress.open else _IDLE_POLL_S)
            if message is not None:
                self._take(message, ended)
            self._producer.poll(0)
            self._check()
            if (now := time.monotonic()) >= due:
                due = now + COMMIT_S
                self._commit()
                self._report("running")
        self._producer.flush(CLOSE_S)
        self._check()
        if not self._progress.open:
            self._mark(open=False)  # if that fails it is left open, and the next start waits a second for nothing
        self._report("stopped")

    def close(self) -> None:
        """Let go of the connections; what is under way is left to its fate, as in a crash."""
        if self._producer is not None:
            self._producer.purge(blocking=True)
            self._producer.poll(0)
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._producer = None

    def _take(self, message: Message, ended: Callable[[], bool]) -> None:
        if (error := message.error()) is not None:
            return self._refuse(error)
        partition, offset = cast("tuple[int, int]", (message.partition(), message.offset()))
        origin = self._origin(message, partition, offset)
        verdict = self._seen.verdict(origin)
        if verdict is Verdict.UNKNOWN:
            self._learn()
            verdict = self._seen.verdict(origin)
        if verdict is not Verdict.NEW:
            self._progress.skip(partition, offset)
            self._suppressed += 1
            return None
        self._forward(message, origin, partition, offset)
        while self._progress.open >= MAX_OPEN and not self._failure and not ended():
            cast(Producer, self._producer).poll(_BUSY_POLL_S)
        return None

    def _forward(self, message: Message, origin: Origin, partition: int, offset: int) -> None:
        raised, sent = message.timestamp()[1] / 1000, time.time()

        def acknowledged(error: KafkaError | None, alert: Message) -> None:
            if error is not None:
                self._failure = self._failure or error
                return
            self._latencies.append(sent - raised + (alert.latency() or 0.0))
            self._seen.written(origin, *cast("tuple[int, int]", (alert.partition(), alert.offset())))
            self._progress.end(partition, offset)
            self._forwarded += 1

        headers = [(name, value) for name, value in _headers(message) if name not in (ORIGIN, QUERY)]
        self._seen.sending(origin)
        self._progress.begin(partition, offset)
        cast(Producer, self._producer).produce(
            self._to,
            key=message.key(),
            value=message.value(),
            headers=[*headers, (ORIGIN, str(origin).encode()), (QUERY, self._candidates.encode())],
            on_delivery=acknowledged,
        )
        failpoints.reach(failpoints.WRITTEN)

    def _origin(self, message: Message, partition: int, offset: int) -> Origin:
        """The cause named in the header; a candidate without one is its own cause, so that it is delivered all the same."""
        for name, value in _headers(message):
            if name == ORIGIN and (origin := Origin.parse((value or b"").decode(errors="replace"))):
                return origin
        return Origin(self._candidates, partition, offset)

    def _commit(self) -> None:
        offsets = self._offsets(open=True)
        if self._state(offsets) == self._committed:
            return
        failpoints.reach(failpoints.ACKNOWLEDGED)
        cast(Consumer, self._consumer).commit(offsets=offsets, asynchronous=True)

    def _mark(self, *, open: bool) -> bool:
        """Commit, wait for it at most CLOSE_S, and return whether it was done."""
        consumer, offsets = cast(Consumer, self._consumer), self._offsets(open=open)
        deadline = time.monotonic() + CLOSE_S
        self._refused_commit = None
        consumer.commit(offsets=offsets, asynchronous=True)
        while self._committed != self._state(offsets) and not self._refused_commit and time.monotonic() < deadline:
            consumer.poll(_BUSY_POLL_S)  # runs _on_commit; a candidate that it fetches is left for the next process
        return self._committed == self._state(offsets)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        if error is not None:
            self._refused_commit = error
            _log.warning("progress of the group %s is not committed yet: %s", self._group, error.str())
            return
        self._committed = self._state(offsets)
        failpoints.reach(failpoints.COMMITTED)

    def _offsets(self, *, open: bool) -> list[TopicPartition]:
        """The commit: positions of all partitions, and beside the first one's what the next process must know."""
        text = Saved(open, self._seen.bounds).text()
        return [
            TopicPartition(self._candidates, p, offset, text if p == 0 else "")
            for p, offset in self._progress.done().items()
        ]

    def _state(self, offsets: list[TopicPartition]) -> tuple[dict[int, int], str]:
        return {o.partition: o.offset for o in offsets}, next(
            (o.metadata or "" for o in offsets if o.partition == 0), ""
        )

    def _last(self) -> tuple[dict[int, int], Saved]:
        """Return where to begin in each partition of the candidates, and what the last process left beside it."""
        known = committed(self._kafka, self._group)
        begin = start_offsets(self._kafka, [self._candidates])
        end = end_offsets(self._kafka, [self._candidates])
        position = {}
        for (topic, partition), first in begin.items():
            offset = known[topic, partition].offset if (topic, partition) in known else first
            # Before the start: retention was faster than we. Behind the end: the topic was made anew. Both: all that is there.
            position[partition] = offset if first <= offset <= end[topic, partition] else first
            if offset != position[partition]:
                _log.warning("%s [%d] no longer has offset %d; delivery goes on at %d", topic, partition, offset, first)
        first_partition = known.get((self._candidates, 0))
        return position, Saved.parse(first_partition.metadata) if first_partition else Saved()

    def _read_back(self, bounds: Bounds) -> list[tuple[Origin, int, int]]:
        """Return what this query has written at and after the tail: origin, partition, offset, in order by partition."""
        found = []
        for message in tail(self._kafka, self._to, dict(bounds.tail), follow=False):
            if origin := self._written_by_us(message.headers):
                found.append((origin, message.partition, message.offset))
        return found

    def _learn(self) -> None:
        """Read the whole of the alert's topic before the memory's tail: a candidate is older than the memory."""
        bounds, history = self._seen.bounds, set[Origin]()
        _log.info("a repeat from long ago: reading back the whole of %s", self._to)
        for message in tail(self._kafka, self._to, "earliest", follow=False):
            if message.offset >= bounds.tail.get(message.partition, 0) or len(history) >= MAX_HISTORY:
                continue
            if origin := self._written_by_us(message.headers):
                history.add(origin)
        self._seen.learn(history)

    def _written_by_us(self, headers: tuple[tuple[str, bytes | None], ...]) -> Origin | None:
        found = dict(headers)
        if found.get(QUERY) != self._candidates.encode():
            return None
        return Origin.parse((found.get(ORIGIN) or b"").decode(errors="replace"))

    def _wait_for_topics(self, wait: Callable[[float], bool]) -> bool:
        deadline = time.monotonic() + TOPIC_S
        while missing := {self._candidates, self._to} - set(topic_names(self._kafka)):
            if time.monotonic() > deadline:
                raise MillstreamError(
                    f"alerts cannot be delivered: there is no topic {' or '.join(sorted(missing))} at"
                    f" {self._kafka.bootstrap}; `millstream plan` shows which topics the application needs."
                )
            if wait(0.2):
                return False
        return True

    def _refuse(self, error: KafkaError) -> None:
        """Take an error of the consumer: most are a broker that is away, which the client mends itself."""
        if is_refusal(error):
            raise refused(self._kafka, error.str())
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            raise Interrupted(f"the topic {self._candidates} is gone")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise self._explain(error, f"the topic {self._candidates} cannot be read")

    def _check(self) -> None:
        """Raise what the producer has met: nothing that it was given may be assumed to be in the topic, or not to be."""
        if (error := self._failure) is None:
            return
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED) or is_refusal(error):
            raise self._explain(error, f"an alert cannot be written to the topic {self._to}")
        raise Interrupted(f"writing to {self._to} failed: {error.str()}")

    def _explain(self, error: KafkaError, what: str) -> MillstreamError:
        return explain(error, self._kafka, what)

    def _report(self, state: str) -> None:
        latencies = sorted(self._latencies)
        self._reporter.report(
            "deliver",
            self._name,
            state=state,
            to=self._to,
            forwarded=self._forwarded,
            suppressed=self._suppressed,
            latency_ms=_ms(latencies, 0.5),
            latency_p99_ms=_ms(latencies, 0.99),
        )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _ms(latencies: list[float], quantile: float) -> float | None:
    """A quantile of sorted seconds, in milliseconds; the clocks of two machines may make it negative, which says nothing."""
    return max(0.0, round(latencies[int(quantile * (len(latencies) - 1))] * 1000, 1)) if latencies else None
