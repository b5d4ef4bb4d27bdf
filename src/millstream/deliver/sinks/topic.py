"""Rows to a topic, through an idempotent producer. The topic itself tells what was written before, by the rows' headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from confluent_kafka import KafkaError, Message, Producer

from millstream.app.outputs import TopicSink
from millstream.app.query import Delivery
from millstream.client.admin import topic_names
from millstream.client.connect import explain, is_refusal
from millstream.client.producer import producer
from millstream.client.tail import tail as read
from millstream.deliver.seen import Origin
from millstream.deliver.sink import MAX_OPEN, ORIGIN, QUERY, Done, Interrupted, Place, Row, Written
from millstream.settings import Kafka


def connect(delivery: Delivery, kafka: Kafka) -> Topic:
    """Return the sink of a delivery. Connects to nothing yet."""
    return Topic(cast(TopicSink, delivery.sink).name, delivery.candidates, kafka)


class Topic:
    """See Sink. Rows of several queries may go to one topic: the header `query` tells them apart."""

    def __init__(self, name: str, candidates: str, kafka: Kafka) -> None:
        self.to = name
        self._query = candidates.encode()
        self._kafka = kafka
        self._producer: Producer | None = None
        self._failure: KafkaError | None = None

    def lacking(self) -> str:
        """See Sink."""
        return "" if self.to in topic_names(self._kafka) else self.to

    def written_before(self, tail: Mapping[int, int]) -> Iterator[Written]:
        """See Sink. Only what this delivery has written."""
        for message in read(self._kafka, self.to, dict(tail) or "earliest", follow=False):
            headers = dict(message.headers)
            if headers.get(QUERY) == self._query and (origin := Origin.of(headers.get(ORIGIN))):
                yield Written(origin, Place(message.partition, message.offset))

    def open(self) -> None:
        """See Sink."""
        self._producer = producer(
            self._kafka,
            linger_ms=0,
            socket_nagle_disable=True,
            message_timeout_ms=0,  # a message may wait for the broker's return; giving it up would mean to start again
            queue_buffering_max_messages=2 * MAX_OPEN,
        )

    def send(self, row: Row, done: Done) -> None:
        """See Sink."""

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failure = self._failure or error
                return
            place = Place(*cast("tuple[int, int]", (message.partition(), message.offset())))
            done(place, message.latency() or 0.0)

        self._opened.produce(
            self.to,
            key=row.key,
            value=row.value,
            headers=[*row.headers, (ORIGIN, row.header), (QUERY, self._query)],
            on_delivery=acknowledged,
        )

    def poll(self, seconds: float) -> None:
        """See Sink."""
        self._opened.poll(seconds)
        self._check()

    def flush(self, seconds: float) -> None:
        """See Sink."""
        self._opened.flush(seconds)
        self._check()

    def close(self) -> None:
        """See Sink."""
        if self._producer is not None:
            self._producer.purge(blocking=True)
            self._producer.poll(0)
            self._producer = None

    @property
    def _opened(self) -> Producer:
        if self._producer is None:
            raise ValueError("expected an open sink")
        return self._producer

    def _check(self) -> None:
        """Raise what the producer has met: nothing that it was given may be assumed to be in the topic, or not to be."""
        if (error := self._failure) is None:
            return
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED) or is_refusal(error):
            raise explain(error, self._kafka, f"an alert cannot be written to the topic {self.to}")
        raise Interrupted(f"writing to {self.to} failed: {error.str()}")
