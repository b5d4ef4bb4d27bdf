"""Where a capture writes: the log's side of it, over an idempotent producer. And what a topic holds already."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from millstream.app.names import SCHEMAS
from millstream.client.admin import LATEST, end_offsets, ensure_topics, offsets
from millstream.client.connect import TIMEOUT_S, admin, result
from millstream.client.consumer import consumer, is_unreadable, unreadable
from millstream.client.producer import producer
from millstream.settings import Kafka, MillstreamError

MAX_MESSAGE = 16 << 20  # bytes of a message, so of a row; Kafka's own default of 1 MB stops at ordinary documents
MAX_BUFFERED_KB = 32 << 10  # unacknowledged bytes: the source's log keeps the rest
MAX_BUFFERED_MESSAGES = 50_000
# While five batches are under way, which take an fsync each, librdkafka asks all the time whether another may go: few and
# large ones cost a third.
BATCH = 4_000_000
LINGER_MS = 20
_FLUSH_S = 0.5
_READ_S = 60.0  # a topic that gives nothing for so long cannot be read
_BATCH = 1000
_POLL_S = 0.05
_TABLE_TOPIC = {"cleanup.policy": "compact", "max.message.bytes": str(MAX_MESSAGE)}
_DURABILITY = "millstream.durability"  # a setting of the embedded log; Apache Kafka has none of that name

# A whole batch is refused for its size, and one that is larger than the log's segments as well.
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """What a capture needs of a log."""

    def attend(self, waiting: Callable[[], object], refused: Callable[[str, str], None]) -> None:
        """Call `waiting` now and then while `send` waits for room, and `refused` with a topic that does not take a row, and why.

        Such a row is missing in the topic. It is said while `send` or `flush` run, so before `flush` returns.
        """

    def prepare(self, topics: Sequence[str]) -> dict[str, str]:
        """Make the compacted topics; return their identities ("" if unknown). One that is deleted and made again has another."""

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Hand over a message; waits while too much is unacknowledged."""

    def flush(self, waiting: Callable[[], bool]) -> bool:
        """Wait until everything is acknowledged. `waiting` is called meanwhile and ends it by returning False."""

    def ends(self, topic: str) -> dict[int, int]:
        """Return the next offset of each partition that is not empty."""

    def stored(self) -> dict[str, dict[int, int]]:
        """Return the ends of the topics that were written since this was called before. Call it after `flush`."""

    def live_keys(self, topic: str, before: Mapping[int, int], waiting: Callable[[], bool]) -> Iterator[bytes]:
        """Return the keys whose last message is older than the offsets `before` and is no tombstone."""


class KafkaSink:
    """A Sink over a Kafka-protocol log. scratch: a folder for what does not fit into memory."""

    def __init__(self, kafka: Kafka, scratch: Path) -> None:
        self._kafka = kafka
        self._scratch = scratch
        self._problem: KafkaError | None = None
        self._waiting: Callable[[], object] = lambda: None
        self._refused: Callable[[str, str], None] = self._raise
        self._producer = producer(
            kafka,
            message_max_bytes=MAX_MESSAGE,
            queue_buffering_max_kbytes=MAX_BUFFERED_KB,
            queue_buffering_max_messages=MAX_BUFFERED_MESSAGES,
            compression_type="lz4",
            batch_size=BATCH,
            linger_ms=LINGER_MS,
            delivery_report_only_error=True,
        )
        self._produce = self._producer.produce
        self._partitions: dict[str, list[int]] = {}
        self._written: set[str] = set()
        self._asking = ThreadPoolExecutor(1, "millstream-ends")

    def attend(self, waiting: Callable[[], object], refused: Callable[[str, str], None]) -> None:
        """See Sink."""
        self._waiting, self._refused = waiting, refused

    def prepare(self, topics: Sequence[str]) -> dict[str, str]:
        """See Sink. What the source may forget must outlive a power cut, so the embedded log syncs these topics."""
        ensure_topics(self._kafka, [(SCHEMAS, None, None), *((name, None, _TABLE_TOPIC) for name in topics)])
        self._configure([SCHEMAS, *topics])
        identities = {}
        futures = admin(self._kafka).describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
        for name, future in futures.items():
            found = result(future, self._kafka, f"topic {name!r} cannot be described")
            identities[name] = str(found.topic_id)
            self._partitions[name] = [p.id for p in found.partitions]
        return identities

    def _configure(self, topics: Sequence[str]) -> None:
        """Give the topics, which may be there already, what they need. Raises MillstreamError when the log refuses that."""
        client = admin(self._kafka)
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        for resource, future in client.describe_configs(resources, request_timeout=TIMEOUT_S).items():
            there = result(future, self._kafka, f"the settings of topic {resource.name!r} cannot be read")
            changes = {}
            if _DURABILITY in there and there[_DURABILITY].value != "commit":
                changes[_DURABILITY] = "commit"
            limit = there.get("max.message.bytes")
            if resource.name != SCHEMAS and limit is not None and int(limit.value or 0) < MAX_MESSAGE:
                changes["max.message.bytes"] = str(MAX_MESSAGE)
            if not changes:
                continue
            wanted = [
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
            ]
            altered = ConfigResource(ConfigResource.Type.TOPIC, resource.name, incremental_configs=wanted)
            said = ", ".join(f"{name}={value}" for name, value in changes.items())
            for done in client.incremental_alter_configs([altered], request_timeout=TIMEOUT_S).values():
                what = f"topic {resource.name!r} needs {said}, so that what the source forgets is kept, and the log refuses that"
                result(done, self._kafka, what)

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        """See Sink. Raises MillstreamError when a message was refused for another reason than its size."""
        while True:
            try:
                self._produce(topic, value, key, -1, self._failed)
                self._written.add(topic)
                return
            except BufferError:
                self._producer.poll(0.05)
                self._check()
                self._waiting()
            except KafkaException as error:
                problem: KafkaError = error.args[0]
                said = f"the topic {topic!r} does not take {_row(key, value)}: {problem.str()}"
                if problem.code() not in _TOO_LARGE:
                    raise MillstreamError(said) from error
                self._refused(
                    topic,
                    f"{said}. A row may have {MAX_MESSAGE} bytes as a message: make it smaller (UPDATE) or delete it; the table"
                    " is copied again by itself then",
                )
                return

    def flush(self, waiting: Callable[[], bool]) -> bool:
        """See Sink. Raises MillstreamError when a message was refused."""
        while self._producer.flush(_FLUSH_S):
            self._check()
            if not waiting():
                return False
        self._check()
        return True

    def poll(self) -> None:
        """Notice failures. Raises MillstreamError when a message was refused."""
        self._producer.poll(0)
        self._check()

    def ends(self, topic: str) -> dict[int, int]:
        """See Sink."""
        return {partition: end for (_, partition), end in end_offsets(self._kafka, [topic]).items() if end > 0}

    def stored(self) -> dict[str, dict[int, int]]:
        """See Sink. Raises Unreachable when the log does not answer."""
        if not self._written:
            return {}
        written = [(topic, p) for topic in self._written for p in self._partitions.get(topic, ())]
        asked = self._asking.submit(offsets, self._kafka, written, LATEST)
        while not asked.done():
            wait([asked], timeout=_FLUSH_S)
            self._waiting()
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), end in asked.result().items():
            found.setdefault(topic, {})[partition] = end
        self._written.clear()
        return found

    def live_keys(self, topic: str, before: Mapping[int, int], waiting: Callable[[], bool]) -> Iterator[bytes]:
        """See Sink. The keys are kept in a file, so memory does not grow with the topic."""
        until = self.ends(topic)
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="keys-") as folder:
            keys = sqlite3.connect(Path(folder) / "keys", isolation_level=None)
            keys.execute("PRAGMA journal_mode = off")
            keys.execute("PRAGMA synchronous = off")
            keys.execute("CREATE TABLE keys (key BLOB PRIMARY KEY) WITHOUT ROWID")
            keys.execute("BEGIN")
            try:
                for message in self._read(topic, until, waiting):
                    old = (message.offset() or 0) < before.get(message.partition() or 0, 0)
                    query = "INSERT OR IGNORE INTO keys VALUES (?)"
                    if message.value() is None or not old:
                        query = "DELETE FROM keys WHERE key = ?"
                    keys.execute(query, (message.key() or b"",))
                for row in keys.execute("SELECT key FROM keys"):
                    yield row[0]
            finally:
                keys.close()

    def _read(self, topic: str, until: Mapping[int, int], waiting: Callable[[], bool]) -> Iterator[Message]:
        """Yield the messages of a topic up to the offsets `until`."""
        left = dict(until)
        if not left:
            return
        reader = consumer(self._kafka, "millstream.capture", enable_partition_eof=True)
        try:
            reader.assign([TopicPartition(topic, partition, 0) for partition in left])
            quiet = 0.0
            while left:
                batch = reader.consume(_BATCH, _POLL_S)
                if not waiting():
                    raise MillstreamError(f"stopped while reading topic {topic!r}")
                quiet = 0.0 if batch else quiet + _POLL_S
                if quiet > _READ_S:
                    raise MillstreamError(f"topic {topic!r} gave nothing within {_READ_S:.0f} s; is the log all right?")
                for message in batch:
                    problem, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                    if problem is None:
                        if offset < until[partition]:
                            yield message
                        if offset + 1 >= until[partition]:
                            left.pop(partition, None)
                    elif problem.code() == KafkaError._PARTITION_EOF:  # compaction may have removed the last offsets
                        left.pop(partition, None)
                    elif is_unreadable(problem):
                        raise unreadable(message)
                    else:
                        raise MillstreamError(f"topic {topic!r} cannot be read: {problem.str()}")
        finally:
            reader.close()

    def _failed(self, error: KafkaError | None, message: Message) -> None:
        topic = message.topic() or ""
        if error is not None and error.code() in _TOO_LARGE and topic != SCHEMAS:
            self._refused(
                topic,
                f"the log refuses {_row(message.key(), message.value())} for the topic {topic!r}, or one that was sent with it:"
                f" {error.str()}. Set max.message.bytes={MAX_MESSAGE} for the topic; the table is copied again by itself then",
            )
        elif error is not None and self._problem is None:
            self._problem = error
            _log.error("topic %s refused a message: %s", message.topic(), error.str())

    @staticmethod
    def _raise(topic: str, reason: str) -> None:
        raise MillstreamError(reason)

    def _check(self) -> None:
        if self._problem is not None:
            raise MillstreamError(
                f"the log at {self._kafka.bootstrap} refused a change: {self._problem.str()}. Nothing is lost: the source's log"
                " is read again from the last change that was stored."
            )


def _row(key: object, value: object) -> str:
    """Name a row in words."""
    shown = key if isinstance(key, bytes) else b""
    size = len(value) if isinstance(value, bytes) else 0
    return f"the row with key {shown[:200].decode(errors='replace')} of {size} bytes"
