"""Looking at a few messages at given offsets: how old they are and how large. Reads little, joins no group, commits nothing.

The Admin API tells offsets, not bytes: the size of segments (DescribeLogDirs) is not among what confluent-kafka 2.16 offers. So
bytes are estimated from samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from confluent_kafka import KafkaError, Message, TopicPartition

from millstream.client.consumer import Consumer, consumer
from millstream.settings import Kafka

MAX_PLACES = (
    512  # in one go; further ones are not looked at, so that a log with thousands of groups is not read all the time
)
SAMPLE = 10  # messages that are looked at from each place
FETCH_BYTES = 64 * 1024  # of a partition; a broker gives at least one batch, whatever its size
PATIENCE_S = 3.0  # for all places of a round: what has not come by then stays unknown
RECORD_BYTES = 10  # what a record takes beside its contents, about
BATCH_BYTES = 61  # and a batch of records; a producer that does not batch pays it for each

Place = tuple[str, int, int]  # topic, partition, offset


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a place. offset: of the first message there, which may be later. at: its timestamp, epoch seconds, None without.

    size: bytes of a message, the mean of a few (key, value and headers as the consumer gets them, so after decompression).
    """

    offset: int
    at: float | None
    size: float


class Probe:
    """Looks at messages over one connection, made when first needed. For one thread."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._consumer: Consumer | None = None

    def look(self, places: Iterable[Place]) -> dict[Place, Found]:
        """Return what is at the places; those where nothing is (any more) or nothing came in time are left out."""
        rounds: list[dict[tuple[str, int], int]] = []
        for topic, partition, offset in list(dict.fromkeys(places))[:MAX_PLACES]:
            # A consumer is at one offset of a partition at a time.
            free = next((r for r in rounds if (topic, partition) not in r), None)
            if free is None:
                rounds.append(free := {})
            free[topic, partition] = offset
        found: dict[Place, Found] = {}
        for one in rounds:
            found |= self._round(one)
        return found

    def close(self) -> None:
        """End the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _round(self, places: Mapping[tuple[str, int], int]) -> dict[Place, Found]:
        if self._consumer is None:
            self._consumer = consumer(
                self._kafka,
                "millstream.lag",
                enable_partition_eof=True,
                isolation_level="read_uncommitted",  # an open transaction is no reason to wait
                fetch_message_max_bytes=FETCH_BYTES,
                fetch_wait_max_ms=20,
            )
        seen: dict[tuple[str, int], list[Message]] = {place: [] for place in places}
        open_ = set(places)
        self._consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in places.items()])
        deadline = time.monotonic() + PATIENCE_S
        while open_ and (left := deadline - time.monotonic()) > 0:
            if (message := self._consumer.poll(min(left, 0.1))) is None:
                continue
            place = cast("tuple[str, int]", (message.topic(), message.partition()))
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(place)
                continue
            if place in open_:
                seen[place].append(message)
                if len(seen[place]) >= SAMPLE:
                    open_.discard(place)
        self._consumer.unassign()
        return {(*place, places[place]): _found(messages) for place, messages in seen.items() if messages}


def _found(messages: list[Message]) -> Found:
    at = messages[0].timestamp()[1]
    size = sum(_size(m) for m in messages) / len(messages)
    return Found(cast(int, messages[0].offset()), at / 1000 if at >= 0 else None, size)


def _size(message: Message) -> int:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    key, value = message.key(), message.value()
    return (
        RECORD_BYTES
        + len(key or b"")
        + len(value or b"")
        + sum(len(name) + len(content or b"") for name, content in headers)
    )
