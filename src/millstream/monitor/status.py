"""Status: what each running part says about itself, kept as the latest facts per part in the topic `_millstream.status`.

A key is "<app>/<kind>/<name>", a value a JSON object {"app", "kind", "name", "at": epoch seconds, …facts}. Kinds: "query",
"table" (a local copy), "capture", "replay", "deliver", "process", "late" (the events that some query left out, each once). The
topic is compacted and forgets after a day, so a part that runs on unchanged says so again every few hours.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import msgspec
from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from millstream.app.names import STATUS
from millstream.client.admin import end_offsets, ensure_topic, start_offsets, topic_names
from millstream.client.connect import unreachable
from millstream.client.consumer import consumer as open_consumer
from millstream.client.consumer import json_object
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.settings import Kafka, MillstreamError

Key = tuple[str, str]  # kind and name
Facts = dict[str, Any]

EVERY_S = 1.0  # the shortest time between two messages of one key; a fast reporter's older facts are simply replaced
REFRESH_S = 6 * 3600.0  # an unchanged key is written again, long before the topic's retention of a day removes it
RETRY_S = 1.0  # between attempts while the log is away
SEND_S = 3.0  # how long a message may take before it is taken back and tried again with fresher facts
MAX_KEYS = 1000  # parts one reporter may name: a key made of data by mistake must not fill memory and topic
# The kinds that say something about processes, not about data: they are true no longer when the application has ended.
OF_A_RUN = frozenset({"query", "table", "capture", "deliver", "process"})
_POLL_S = 0.5  # how soon a follower notices that it is to stop
_FETCH_MS = 1000  # how long the broker holds a fetch that finds nothing

_log = logging.getLogger(__name__)


class Reporter:
    """Writes an application's facts to the status topic, only on change and at most once a second per key.

    `report` only notes the facts; a thread sends them, always the last ones in the end. While the log is away the thread keeps
    trying with the latest facts. Close it, or the last second may be missing.
    """

    def __init__(self, kafka: Kafka, app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._changed = threading.Condition()
        self._board = Board()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="millstream-status", daemon=True)
        self._thread.start()

    def report(self, kind: str, name: str, **facts: Any) -> None:
        """Note the facts of one part, all of them: they replace what was reported before. Never waits.

        Raises MillstreamError for the thousand-and-first name.
        """
        with self._changed:
            if self._board.note((kind, name), facts):
                self._changed.notify_all()

    def flush(self, timeout: float = 10.0) -> bool:
        """Send what is noted without regard for the second between messages; return whether all of it was acknowledged."""
        with self._changed:
            self._board.hurry()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._board.pending, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Flush and end the thread; gives up after about `timeout` seconds when the log is away."""
        self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(1.0)  # the thread is a daemon: one that waits for a log that is away holds up nobody

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        client: Producer | None = None
        while True:
            with self._changed:
                while not self._closing and not (due := self._board.due(time.monotonic())):
                    self._changed.wait(self._board.wait_s(time.monotonic()))
                if self._closing:
                    return
            try:
                if client is None:
                    ensure_topic(self._kafka, STATUS)
                    client = producer(
                        self._kafka,
                        linger_ms=0,
                        # What takes too long is withdrawn and replaced, which leaves gaps an idempotent producer cannot have;
                        # one request at a time keeps the order instead, and a repeated status does no harm.
                        enable_idempotence=False,
                        max_in_flight=1,
                        queue_buffering_max_messages=2 * MAX_KEYS,
                    )
                delivered = self._send(client, due)
            except MillstreamError as error:
                _log.warning("status is not written: %s", error)
                delivered = set()
            with self._changed:
                for key, facts in due.items():
                    self._board.sent(key, facts if key in delivered else None, time.monotonic())
                self._changed.notify_all()
                if delivered != due.keys() and not self._closing:
                    self._changed.wait(RETRY_S)

    def _send(self, client: Producer, due: Mapping[Key, Facts]) -> set[Key]:
        """Write the facts and return the keys that were acknowledged; the rest is withdrawn, so nothing old arrives later."""
        delivered: set[Key] = set()

        def noting(key: Key) -> Callable[[KafkaError | None, Message], None]:
            return lambda error, _: None if error else delivered.add(key)

        for key, facts in due.items():
            kind, name = key
            value = {"app": self._app, "kind": kind, "name": name, "at": round(time.time(), 3), **facts}
            client.produce(
                STATUS,
                key=f"{self._app}/{kind}/{name}",
                value=msgspec.json.encode(value),
                on_delivery=noting(key),
            )
        if client.flush(SEND_S):
            client.purge(blocking=True)
            client.flush(SEND_S)
        return delivered


class Board:
    """What a reporter has to send, and when: a state without clock, thread or log. Times are seconds of any clock."""

    def __init__(self) -> None:
        self.pending: dict[Key, Facts] = {}
        self._sent: dict[Key, tuple[Facts, float]] = {}
        self._hurried = False

    def note(self, key: Key, facts: Facts) -> bool:
        """Take the facts of a key; return whether they are new. Raises MillstreamError when there are MAX_KEYS others."""
        if (
            key not in self._sent
            and key not in self.pending
            and len(self._sent.keys() | self.pending.keys()) >= MAX_KEYS
        ):
            raise MillstreamError(f"expected at most {MAX_KEYS} names in the status, got {key[0]}/{key[1]} as well.")
        known = self.pending.get(key) if key in self.pending else self._sent.get(key, (None, 0.0))[0]
        if known == facts:
            return False
        self.pending[key] = dict(facts)
        return True

    def hurry(self) -> None:
        """Make everything pending due at once."""
        self._hurried = bool(self.pending)

    def due(self, now: float) -> dict[Key, Facts]:
        """Return what is to be sent now; it stays pending until `sent` says that it went."""
        for key, (facts, at) in self._sent.items():
            if now - at >= REFRESH_S:
                self.pending.setdefault(key, facts)
        return {key: facts for key, facts in self.pending.items() if self._hurried or self._at(key) <= now}

    def wait_s(self, now: float) -> float:
        """Return the seconds until something becomes due."""
        times = [self._at(key) for key in self.pending] or [at + REFRESH_S for _, at in self._sent.values()]
        return max(0.0, min(times, default=now + REFRESH_S) - now)

    def sent(self, key: Key, facts: Facts | None, now: float) -> None:
        """Record that the facts of a key were acknowledged at `now`; None: they were not, and stay pending."""
        if facts is None:
            return
        self._sent[key] = (facts, now)
        if self.pending.get(key) == facts:
            del self.pending[key]
        self._hurried = self._hurried and bool(self.pending)

    def _at(self, key: Key) -> float:
        sent = self._sent.get(key)
        return sent[1] + EVERY_S if sent else float("-inf")


class Follower:
    """Keeps the latest facts of every part of an application, in a thread that sleeps until the log has news.

    app: whose facts; None for those of all applications, named "<app>/<name>" then.
    `latest` holds the facts by (kind, name). It is replaced, never changed in place, so it may be read from any thread.
    """

    def __init__(self, kafka: Kafka, app: str | None = None) -> None:
        self.latest: Mapping[Key, Facts] = {}
        self.ready = threading.Event()  # set when everything that was in the topic at the start has been read
        self._kafka = kafka
        self._app = app
        self._callbacks: list[Callable[[Key, Facts | None], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-status-follower", daemon=True)
        self._thread.start()

    def subscribe(self, callback: Callable[[Key, Facts | None], None]) -> Callable[[], None]:
        """Call `callback(key, facts)` in the follower's thread on every change (None: forgotten); returns how to end it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def close(self) -> None:
        """End the thread and the connection."""
        self._stop.set()
        self._thread.join(10)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                ensure_topic(self._kafka, STATUS)
                start, end = start_offsets(self._kafka, [STATUS]), end_offsets(self._kafka, [STATUS])
                break
            except MillstreamError as error:
                _log.warning("status cannot be read yet: %s", error)
                self._stop.wait(RETRY_S)
        else:
            return
        consumer = open_consumer(
            self._kafka, "millstream.status", enable_partition_eof=True, fetch_wait_max_ms=_FETCH_MS
        )
        unread = {p: offset for (_, p), offset in end.items() if start[STATUS, p] < offset}
        try:
            consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in start.items()])
            while not self._stop.is_set():
                if not unread:
                    self.ready.set()
                if (message := consumer.poll(_POLL_S)) is None:
                    continue
                partition, offset = cast("tuple[int, int]", (message.partition(), message.offset()))
                if (problem := message.error()) is None:
                    self._take(message.key(), message.value())
                    if offset + 1 >= unread.get(partition, 0):
                        unread.pop(partition, None)
                elif problem.code() == KafkaError._PARTITION_EOF:
                    unread.pop(partition, None)  # the last offsets may be gone, by compaction
        finally:
            consumer.close()

    def _take(self, raw_key: bytes | None, value: bytes | None) -> None:
        if (key := _key(raw_key, self._app)) is None:
            return
        facts = json_object(value)
        latest = dict(self.latest)
        if facts is None:
            latest.pop(key, None)
        else:
            latest[key] = facts
        self.latest = latest
        for callback in list(self._callbacks):
            try:
                callback(key, facts)
            except Exception:  # one listener's mistake must not stop the others, nor the following
                _log.exception("a status callback failed")


def read(kafka: Kafka, app: str | None = None) -> dict[Key, Facts]:
    """Return the latest facts by (kind, name), as `Follower.latest` has them. Creates nothing; empty when nobody ever reported.

    Raises MillstreamError when the log does not answer.
    """
    latest: dict[Key, Facts] = {}
    if STATUS not in topic_names(kafka):
        return latest
    for message in tail(kafka, STATUS, "earliest", follow=False):
        if (key := _key(message.key, app)) is None:
            continue
        if (facts := json_object(message.value)) is None:
            latest.pop(key, None)
        else:
            latest[key] = facts
    return latest


def forget(kafka: Kafka, app: str, before: float, kinds: Collection[str] = OF_A_RUN) -> list[Key]:
    """Remove what an earlier run of an application left behind: its facts older than `before` (epoch seconds).

    Without it a query that a crash left "running", or that the application no longer has, would be shown for a day, and one that
    had failed would count as failed until it reports again. Returns the keys.
    Raises MillstreamError when the log does not answer.
    """
    old = [key for key, facts in read(kafka, app).items() if key[0] in kinds and facts.get("at", 0) < before]
    if old:
        client = producer(kafka, linger_ms=0)
        for kind, name in old:
            client.produce(STATUS, key=f"{app}/{kind}/{name}", value=None)
        if client.flush(SEND_S):
            client.purge()
            client.flush(SEND_S)
            raise unreachable(kafka)
    return old


def _key(raw: bytes | None, app: str | None) -> Key | None:
    parts = (raw or b"").decode(errors="replace").split("/", 2)
    if len(parts) != 3 or (app is not None and parts[0] != app):
        return None
    return (parts[1], parts[2] if app is not None else f"{parts[0]}/{parts[2]}")
