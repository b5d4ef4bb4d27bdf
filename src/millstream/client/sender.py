"""Sending messages and waiting until the log has them: bounded, from any thread, with a word on what was not written."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from millstream.client.admin import ensure_topic
from millstream.client.producer import producer
from millstream.client.wait import wait_for_kafka
from millstream.settings import Kafka, MillstreamError

ANSWER_S = 10.0  # how long a log that was not used before may take to answer
DELIVERY_S = 30.0  # how long a message may take to be acknowledged, a restart of the broker included
MAX_SENDERS = 4  # each keeps a thread and connections; more logs at once than this and the oldest is let go
MAX_SHOWN = 3  # failures in the message; the error has them all
_TURN_S = 0.01  # another thread's poll may have taken our report

Messages = Iterable[tuple[bytes | None, bytes]]


class SendError(MillstreamError):
    """Messages were not written. Nothing is sent after the first failure, beside what was on its way already.

    written: how many the log has acknowledged.   taken: how many were taken from what was given, in its order.
    failed: the numbers of those that were not acknowledged, from 0, and why. One whose time was over may stand in the log
    all the same: it is not known.
    """

    def __init__(self, topic: str, taken: int, failed: Mapping[int, str]) -> None:
        self.taken, self.failed, self.written = taken, dict(sorted(failed.items())), taken - len(failed)
        first = "; ".join(f"number {number}: {why}" for number, why in list(self.failed.items())[:MAX_SHOWN])
        more = f"; and {len(failed) - MAX_SHOWN:,} more" if len(failed) > MAX_SHOWN else ""
        super().__init__(
            f"topic {topic!r}: {self.written:,} of {taken:,} events were written, {len(failed):,} were not ({first}{more})."
            f" Nothing after number {taken - 1} was tried."
        )


class Sender:
    """One log's producer and the topics that are known to be there. Used by any number of threads."""

    def __init__(self, kafka: Kafka) -> None:
        """Raises MillstreamError when the log does not answer."""
        wait_for_kafka(kafka, ANSWER_S)
        self._kafka = kafka
        self._producer = producer(kafka, linger_ms=0, message_timeout_ms=int(DELIVERY_S * 1000))
        self._topics: set[str] = set()

    def ensure(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic unless it exists."""
        if topic not in self._topics:
            ensure_topic(self._kafka, topic, partitions, config)
            self._topics.add(topic)

    def send(self, topic: str, messages: Messages) -> int:
        """Send (key, value) and return how many, once the log has acknowledged each.

        A message that cannot be made may raise MillstreamError while it is taken: what was taken before is still waited for.
        Raises SendError when one was not written.
        """
        round_ = _Round()
        try:
            for key, value in messages:
                self._give(topic, key, value, round_)
                self._producer.poll(0)
                if round_.failed:
                    break
        except MillstreamError as error:
            round_.refuse(str(error))
        finally:
            self._wait(round_)
        if round_.failed:
            raise SendError(topic, round_.taken, round_.failed)
        return round_.taken

    def _give(self, topic: str, key: bytes | None, value: bytes, round_: _Round) -> None:
        number = round_.take()
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=partial(round_.report, number))
                return
            except BufferError:
                self._producer.poll(_TURN_S)
            except KafkaException as error:  # too large for the client, for one
                round_.report(number, error.args[0], None)
                return

    def _wait(self, round_: _Round) -> None:
        deadline = (
            time.monotonic() + DELIVERY_S + ANSWER_S
        )  # librdkafka ends each message itself; this guards against its bugs
        while round_.open and time.monotonic() < deadline:
            self._producer.poll(_TURN_S)
        round_.close()


class _Round:
    """What became of the messages of one call."""

    def __init__(self) -> None:
        self.taken = 0
        self.failed: dict[int, str] = {}
        self._open: set[int] = set()
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether a message is on its way."""
        return bool(self._open)

    def take(self) -> int:
        """Return the number of the next message."""
        with self._lock:
            number, self.taken = self.taken, self.taken + 1
            self._open.add(number)
        return number

    def report(self, number: int, error: Any, message: Any) -> None:
        """Take a delivery report, on whichever thread polls."""
        with self._lock:
            self._open.discard(number)
            if error is not None:
                self.failed[number] = error.str()

    def refuse(self, why: str) -> None:
        """Count a message that could not be made."""
        self.report(number := self.take(), None, None)
        self.failed[number] = why

    def close(self) -> None:
        """Count what nothing was heard of."""
        with self._lock:
            self.failed |= dict.fromkeys(self._open, "no answer from the log")
            self._open.clear()


_senders: OrderedDict[tuple[object, ...], Sender] = OrderedDict()
_lock = threading.Lock()


def sender(kafka: Kafka) -> Sender:
    """Return this process's sender for a log."""
    identity = _identity(kafka)
    with _lock:
        if identity not in _senders:
            _senders[identity] = Sender(kafka)
        _senders.move_to_end(identity)
        while len(_senders) > MAX_SENDERS:
            _senders.popitem(last=False)
        return _senders[identity]


def forget(kafka: Kafka) -> None:
    """Make the next `sender` begin from scratch: after a failure its topics may be gone, or its producer of no more use."""
    with _lock:
        _senders.pop(_identity(kafka), None)


def _identity(kafka: Kafka) -> tuple[object, ...]:
    return os.getpid(), kafka.bootstrap, *sorted(kafka.options.items())  # a fork must not share its parent's
