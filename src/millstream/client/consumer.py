"""The consumer that parts read with: no group is joined, nothing is committed, and what a batch unpacks to has a bound.

librdkafka unpacks a whole batch before it hands out the first message, and makes some 300 bytes of each record beside its
contents. `receive.message.max.bytes` bounds what it unpacks of zstd, and nothing bounds the other codecs or the number of
records: 9 kB can become 4 GB. So a watching thread ends the process, with a message that names the topics, when memory grows by
MAX_GROWTH while a consumer waits in `poll` or `consume` and gets nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, Message, TopicPartition

from millstream.client.connect import config
from millstream.settings import Kafka, MillstreamError

MAX_UNPACKED = 64 * 1024 * 1024  # bytes that a zstd batch may unpack to, and that one answer of the log may have
MAX_ANSWER = 16 * 1024 * 1024  # bytes of batches that are asked for at once, over all partitions
MAX_GROWTH = 512 * 1024 * 1024  # bytes by which the process may grow while a consumer waits for a message
WINDOW_S = 10.0  # growth that is slower than this is not a batch that is being unpacked
_EVERY_S = 0.05
_STATM = "/proc/self/statm"  # Linux; elsewhere memory is not watched


def consumer(kafka: Kafka, name: str, **more: object) -> Consumer:
    """Return a consumer for `assign`: offsets are the caller's business. name: the group id that librdkafka insists on.

    more: librdkafka properties with `_` for `.`; they win over the user's own under `[kafka]`, which win over the bounds here.
    """
    bounds = {"receive.message.max.bytes": MAX_UNPACKED, "fetch.max.bytes": MAX_ANSWER}
    given = config(kafka, group_id=name, enable_auto_commit=False, auto_offset_reset="earliest", **more)
    opened = Consumer(bounds | given)
    _watch(opened)
    return opened


class Consumer(KafkaConsumer):
    """A consumer that notes what it waits for. For one thread."""

    topics: tuple[str, ...] = ()
    waiting = False
    heard = 0  # how often something came
    last: tuple[str | None, int | None, int | None] | None = None

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read from these places."""
        self.topics = tuple(dict.fromkeys(p.topic for p in partitions))
        super().assign(partitions)

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message or error, None when nothing comes in time."""
        self.waiting = True
        try:
            message = super().poll(timeout)
        finally:
            self.waiting = False
        if message is not None:
            self._note(message)
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to that many messages and errors, fewer when no more come in time."""
        self.waiting = True
        try:
            messages = super().consume(num_messages, timeout)
        finally:
            self.waiting = False
        if messages:
            self._note(messages[-1])
        return messages

    def _note(self, message: Message) -> None:
        self.heard += 1
        self.last = (message.topic(), message.partition(), message.offset())


def is_unreadable(error: KafkaError) -> bool:
    """Tell whether an error means a batch that no consumer can unpack: asking again brings it again."""
    return error.code() in (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG)


def unreadable(message: Message) -> MillstreamError:
    """Return the error for the batch of an `is_unreadable` error."""
    reason = error.str() if (error := message.error()) else "unknown"
    return MillstreamError(
        f"topic {message.topic()!r} [{message.partition()}] has a batch at offset {message.offset()} that cannot be unpacked:"
        f" {reason}. It is damaged, or unpacks to more than {MAX_UNPACKED // 2**20} MB (receive.message.max.bytes under"
        " [kafka] in millstream.toml). Read on behind it, from a later offset or time."
    )


# The watch: one thread for all consumers of the process, which ends when there are none.

_open: weakref.WeakSet[Consumer] = weakref.WeakSet()
_lock = threading.Lock()
_watching = False


def _watch(opened: Consumer) -> None:
    global _watching
    with _lock:
        _open.add(opened)
        if _watching or not os.path.exists(_STATM):
            return
        _watching = True
    threading.Thread(target=_run, name="millstream-memory", daemon=True).start()


def _run() -> None:
    global _watching
    growths: weakref.WeakKeyDictionary[Consumer, Growth] = weakref.WeakKeyDictionary()
    page = os.sysconf("SC_PAGE_SIZE")
    with open(_STATM, "rb", buffering=0) as file:
        while True:
            file.seek(0)
            size = int(file.read(200).split()[1]) * page
            with _lock:
                if not _sample(growths, size):
                    _watching = False
                    return
            time.sleep(_EVERY_S)


def _sample(growths: weakref.WeakKeyDictionary[Consumer, Growth], size: int) -> bool:
    """Look at every consumer; return whether there are any. Nothing here may keep one alive."""
    found = list(_open)
    for one in found:
        growth = growths.setdefault(one, Growth())
        if growth.add(time.monotonic(), size, one.heard if one.waiting else None) > MAX_GROWTH:
            _end(one)
    return bool(found)


class Growth:
    """By how much memory has grown within WINDOW_S while the same wait lasts. Pure: times in seconds, sizes in bytes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._heard: int | None = None

    def add(self, now: float, size: int, heard: int | None) -> int:
        """Take a sample and return the growth. heard: how much has come so far; None: nobody waits at the moment."""
        if heard is None or heard != self._heard:
            self._samples.clear()
        self._heard = heard
        self._samples.append((now, size))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        return size - min(least for _, least in self._samples)


def _end(one: Consumer, leave: Callable[[int], Any] = os._exit) -> None:
    """End the process at once: the thread that unpacks cannot be stopped in any other way."""
    where = f", behind offset {one.last[2]} of {one.last[0]!r} [{one.last[1]}]" if one.last else ""
    sys.stderr.write(
        f"error: reading {', '.join(map(repr, one.topics)) or 'a topic'} is given up: a batch{where} unpacks to more than"
        f" {MAX_GROWTH // 2**20} MB of memory. Read on behind it, from a later offset or time, and find its producer.\n"
    )
    sys.stderr.flush()
    leave(1)


def json_object(value: bytes | None) -> dict[str, Any] | None:
    """Return the JSON object that a message's value is; None for a tombstone and for all else, also what is nested too deep."""
    try:
        return msgspec.json.decode(value, type=dict[str, Any]) if value else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
