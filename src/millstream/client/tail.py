"""Reading a topic from any place, as an iterator with bounded memory, without being a member of any group."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from millstream.client.admin import end_offsets, offsets, start_offsets
from millstream.client.connect import TIMEOUT_S, explain, is_refusal, refused, unreachable
from millstream.client.consumer import Consumer, consumer, is_unreadable, unreadable
from millstream.settings import Kafka, MillstreamError

MAX_QUEUED_KB = 16 * 1024  # fetched ahead of the caller, over all partitions; a slow caller is waited for
MAX_LAST = 10_000  # messages of each partition that `last` may hold in memory
_POLL_S = 0.5  # how soon an interrupt is noticed; not a polling rate: librdkafka is woken by data
# How long the broker holds a fetch that finds nothing. A broker serves a connection's requests in turn, so a partition that is
# asked for a moment after the others waits that long for its first message.
_FETCH_MS = 250
_FETCH_ONCE_MS = 20  # the same for a read that ends, where every such wait is felt

Start = str | int | datetime | Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is in the log. `timestamp` is in epoch milliseconds, -1 when it has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def tail(
    kafka: Kafka,
    topic: str,
    start: Start = "latest",
    follow: bool = True,
    limit: int | None = None,
    *,
    partition: int | None = None,
) -> Iterator[Message]:
    """Yield the messages of a topic, in order within each partition.

    start: "earliest", "latest", an offset, a negative number -N for the last N of each partition, a time (with a zone), or a
      mapping of partitions to offsets (the earliest where none is given).
    follow: go on when the end is reached; without it, stop at the end as it was at the start.
    limit: stop after that many messages.
    Raises MillstreamError for an unknown topic, a partition it lacks, a batch that cannot be unpacked, or a log that does not
    answer.
    """
    first, last = _range(kafka, topic, start, partition)
    if not follow:
        first = {p: offset for p, offset in first.items() if offset < last[p]}
    if not first or limit == 0:
        return
    reader = consumer(
        kafka,
        "millstream.tail",
        enable_partition_eof=True,
        queued_max_messages_kbytes=MAX_QUEUED_KB,
        fetch_wait_max_ms=_FETCH_MS if follow else _FETCH_ONCE_MS,
    )
    try:
        reader.assign([TopicPartition(topic, p, offset) for p, offset in first.items()])
        yield from _messages(reader, kafka, None if follow else {p: last[p] for p in first}, limit)
    finally:
        reader.close()


def last(kafka: Kafka, topic: str, count: int, *, partition: int | None = None) -> tuple[list[Message], dict[int, int]]:
    """Return the last `count` messages of a topic over all its partitions, and from where each partition continues.

    Partitions have no common order, so the messages' timestamps decide which are the last; within a partition the order is the
    log's. Offsets without a message (compaction, transactions) do not count: it is looked further back for them.
    Raises MillstreamError as `tail` does, and for a count beyond MAX_LAST.
    """
    if not 0 <= count <= MAX_LAST:
        raise MillstreamError(
            f"expected at most the last {MAX_LAST:,} messages, got {count:,}; start from an offset or a time instead."
        )
    begin, end = _range(kafka, topic, "earliest", partition)[0], _range(kafka, topic, "latest", partition)[1]
    found: dict[int, deque[Message]] = {p: deque() for p in end}
    looking, back = {p for p in end if begin[p] < end[p]}, max(count, 1)
    while looking and count:
        first = {p: max(begin[p], end[p] - back) if p in looking else end[p] for p in end}
        found |= {p: deque(maxlen=count) for p in looking}
        for message in tail(kafka, topic, first, follow=False, partition=partition):
            if message.offset < end[message.partition]:
                found[message.partition].append(message)
        looking = {p for p in looking if len(found[p]) < count and end[p] - back > begin[p]}
        back *= 8
    return newest(list(found.values()), count), end


def newest(partitions: Sequence[Iterable[Message]], count: int) -> list[Message]:
    """Return the last `count` messages of several partitions, merged by time without changing the order within any."""

    def timed(messages: Iterable[Message]) -> Iterator[tuple[int, int, Message]]:
        latest = -1  # a producer's clock may go back; the order of the log does not
        for message in messages:
            latest = max(latest, message.timestamp)
            yield latest, message.partition, message

    merged = heapq.merge(*map(timed, partitions), key=lambda item: item[:2])
    return list(deque((message for _, _, message in merged), maxlen=count)) if count else []


def _messages(reader: Consumer, kafka: Kafka, until: dict[int, int] | None, limit: int | None) -> Iterator[Message]:
    """Yield what the consumer gets; with `until`, end when each partition has been read to its offset there."""
    count, heard = 0, time.monotonic()
    while until is None or until:
        got = reader.poll(_POLL_S)
        if got is None:
            if until is not None and time.monotonic() - heard > TIMEOUT_S:
                raise unreachable(kafka)
            continue
        heard = time.monotonic()
        if error := got.error():
            if until is not None and error.code() == KafkaError._PARTITION_EOF:
                # The end, though offsets before it may be gone or not yet committed.
                until.pop(cast(int, got.partition()), None)
            elif is_unreadable(error):
                raise unreadable(got)
            else:
                _raise_if_lasting(error, kafka)
            continue
        message = _message(got)
        if until is not None and message.offset >= until.get(message.partition, 0):
            until.pop(message.partition, None)
            continue
        yield message
        count += 1
        if count == limit:
            return
        if until is not None and message.offset + 1 >= until[message.partition]:
            del until[message.partition]


def _message(m: KafkaMessage) -> Message:
    headers = cast("list[tuple[str, bytes | None]]", m.headers() or [])
    # The client's types allow None for messages that were never in a log; those from poll() without an error have all.
    topic, partition, offset = cast("tuple[str, int, int]", (m.topic(), m.partition(), m.offset()))
    return Message(topic, partition, offset, m.timestamp()[1], m.key(), m.value(), tuple(headers))


def _raise_if_lasting(error: KafkaError, kafka: Kafka) -> None:
    """Raise for what waiting does not mend; a lost connection is mended by the client itself."""
    if is_refusal(error):
        raise refused(kafka, error.str())
    if error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ):
        raise explain(error, kafka, "the topic cannot be read any further")


def _range(kafka: Kafka, topic: str, start: Start, partition: int | None) -> tuple[dict[int, int], dict[int, int]]:
    """Return where to begin in each partition, and where each ends now."""
    begin = {p: offset for (_, p), offset in start_offsets(kafka, [topic]).items()}
    end = {p: offset for (_, p), offset in end_offsets(kafka, [topic]).items()}
    if partition is not None:
        if partition not in end:
            raise MillstreamError(f"topic {topic!r} has the partitions 0 to {len(end) - 1}, not {partition}.")
        begin, end = {partition: begin[partition]}, {partition: end[partition]}
    return _first(kafka, topic, start, begin, end), end


def _first(kafka: Kafka, topic: str, start: Start, begin: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    if start == "earliest":
        return dict(begin)
    if start == "latest":
        return dict(end)
    if isinstance(start, datetime):
        return _at_time(kafka, topic, start, end)
    if isinstance(start, int | Mapping):
        given = start if isinstance(start, Mapping) else {p: start if start >= 0 else end[p] + start for p in end}
        wanted = {p: given.get(p, 0) for p in end}
        return {p: min(max(offset, begin[p]), end[p]) for p, offset in wanted.items()}
    raise MillstreamError(f'expected "earliest", "latest", an offset or a time to start from, got {start!r}.')


def _at_time(kafka: Kafka, topic: str, start: datetime, end: Mapping[int, int]) -> dict[int, int]:
    if start.tzinfo is None:
        raise MillstreamError(f"the time {start.isoformat()} needs a time zone.")
    spec = OffsetSpec.for_timestamp(int(start.timestamp() * 1000))
    found = offsets(kafka, [(topic, p) for p in end], spec)
    return {p: offset if offset >= 0 else end[p] for (_, p), offset in found.items()}
