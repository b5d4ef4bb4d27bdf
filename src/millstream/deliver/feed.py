"""The candidates of one delivery: read in order, told from repeats, and committed once done. Pure but for its consumer.

`alerts.py` says why it is exact.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from confluent_kafka import KafkaError, Message, TopicPartition

from millstream.client.connect import explain, is_refusal, refused
from millstream.deliver import failpoints
from millstream.deliver.progress import Progress, Saved
from millstream.deliver.seen import MAX_HISTORY, Origin, Seen, Verdict
from millstream.deliver.sink import ORIGIN, QUERY, Interrupted, Place, Row, Written
from millstream.settings import Kafka, MillstreamError

_POLL_S = 0.02

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """What a feed needs of a consumer."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def poll(self, timeout: float) -> Message | None: ...

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any: ...

    def close(self) -> None: ...


class Feed:
    """What is read, what of it was written before, and how far everything is done.

    consumer: makes the consumer, given what to call when a commit has ended.   position: where to begin, by partition.
    before: what the sink holds from some offsets on (see Sink.written_before).
    """

    def __init__(
        self,
        candidates: str,
        group: str,
        kafka: Kafka,
        consumer: Callable[[Callable[[KafkaError | None, list[TopicPartition]], None]], Reader],
        position: Mapping[int, int],
        seen: Seen,
        before: Callable[[Mapping[int, int]], Iterable[Written]],
    ) -> None:
        self.suppressed = 0
        self.refused: KafkaError | None = None  # why the last commit was not taken
        self._candidates = candidates
        self._group = group
        self._kafka = kafka
        self._position = dict(position)
        self._progress = Progress(position)
        self._seen = seen
        self._before = before
        self._committed: tuple[dict[int, int], str] | None = None
        for written in before(seen.bounds.tail):
            seen.written(written.origin, written.place.partition, written.place.offset)
        failpoints.reach(failpoints.RECOVERED)
        self._consumer = consumer(self._on_commit)

    @property
    def open(self) -> int:
        """How many rows are on their way."""
        return self._progress.open

    def begin(self) -> None:
        """Start to read."""
        self._consumer.assign([TopicPartition(self._candidates, p, offset) for p, offset in self._position.items()])

    def next(self, seconds: float) -> Row | None:
        """Wait at most so long for a candidate; return it if it is to be delivered, else note that it needs nothing.

        Who gets a row says `sending`, and `done` when it is written.
        Raises Interrupted when the topic is gone, MillstreamError when it may not be read.
        """
        message = self._consumer.poll(seconds)
        if message is None:
            return None
        if (error := message.error()) is not None:
            self._refuse(error)
            return None
        row = self._row(message)
        verdict = self._seen.verdict(row.origin)
        if verdict is Verdict.UNKNOWN:
            self._learn()
            verdict = self._seen.verdict(row.origin)
        if verdict is Verdict.NEW:
            return row
        self._progress.skip(row.partition, row.offset)
        self.suppressed += 1
        return None

    def sending(self, row: Row) -> None:
        """Note that a row is on its way."""
        self._seen.sending(row.origin)
        self._progress.begin(row.partition, row.offset)

    def done(self, row: Row, place: Place) -> None:
        """Note that a row is written."""
        self._seen.written(row.origin, place.partition, place.offset)
        self._progress.end(row.partition, row.offset)

    def commit(self) -> None:
        """Commit how far everything is done, if that has changed; the answer comes within a later `next`."""
        offsets = self._offsets(open=True)
        if _state(offsets) == self._committed:
            return
        failpoints.reach(failpoints.ACKNOWLEDGED)
        self._consumer.commit(offsets=offsets, asynchronous=True)

    def mark(self, *, open: bool, seconds: float) -> bool:
        """Commit, with the delivery open or closed, wait for it at most so long, and return whether it was done."""
        offsets = self._offsets(open=open)
        deadline = time.monotonic() + seconds
        self.refused = None
        self._consumer.commit(offsets=offsets, asynchronous=True)
        while self._committed != _state(offsets) and not self.refused and time.monotonic() < deadline:
            self._consumer.poll(_POLL_S)  # runs _on_commit; a candidate that it fetches is left for the next process
        return self._committed == _state(offsets)

    def close(self) -> None:
        """Let go of the consumer."""
        self._consumer.close()

    def _row(self, message: Message) -> Row:
        """A candidate; one whose header names no cause is its own cause, so that it is delivered all the same."""
        partition, offset = cast("tuple[int, int]", (message.partition(), message.offset()))
        headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
        origin, header = next(
            ((o, v or b"") for name, v in headers if name == ORIGIN and (o := Origin.of(v))), (None, b"")
        )
        if origin is None:
            origin = Origin(self._candidates, partition, offset)
            header = str(origin).encode()
        others = tuple((name, value) for name, value in headers if name not in (ORIGIN, QUERY))
        raised = message.timestamp()[1] / 1000
        key, value = message.key(), message.value()
        return Row(partition, offset, key, value, others, origin, header, raised)

    def _learn(self) -> None:
        """Read what was written before the memory's tail: a candidate is older than the memory."""
        _log.info("a repeat from long ago: reading back all that was delivered from %s", self._candidates)
        tail, history = self._seen.bounds.tail, set[Origin]()
        for written in self._before({}):
            if written.place.offset < tail.get(written.place.partition, 0) and len(history) < MAX_HISTORY:
                history.add(written.origin)
        self._seen.learn(history)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        if error is not None:
            self.refused = error
            _log.warning("progress of the group %s is not committed yet: %s", self._group, error.str())
            return
        self._committed = _state(offsets)
        failpoints.reach(failpoints.COMMITTED)

    def _offsets(self, *, open: bool) -> list[TopicPartition]:
        """The commit: positions of all partitions, and beside the first one's what the next process must know."""
        text = Saved(open, self._seen.bounds).text()
        return [
            TopicPartition(self._candidates, p, offset, text if p == 0 else "")
            for p, offset in self._progress.done().items()
        ]

    def _refuse(self, error: KafkaError) -> None:
        """Take an error of the consumer: most are a broker that is away, which the client mends itself."""
        if is_refusal(error):
            raise refused(self._kafka, error.str())
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
            raise Interrupted(f"the topic {self._candidates} is gone")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise self.explain(error, f"the topic {self._candidates} cannot be read")

    def explain(self, error: KafkaError, what: str) -> MillstreamError:
        """Return the error for the user."""
        return explain(error, self._kafka, what)


def _state(offsets: list[TopicPartition]) -> tuple[dict[int, int], str]:
    return {o.partition: o.offset for o in offsets}, next((o.metadata or "" for o in offsets if o.partition == 0), "")
