"""Follows the changelog of one captured table and writes it out for Spark, one Parquet file per chunk that changed.

A thread with a consumer keeps the rows. Whatever goes wrong concerns this table only and is mended without a restart: a broker
that is away is waited for, and a topic that was deleted and made again, which its id tells, is read again from its beginning.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)

from millstream.app.names import SCHEMAS
from millstream.client.admin import LATEST, offsets
from millstream.client.connect import admin, config, result
from millstream.settings import Kafka, MillstreamError, Unreachable
from millstream.spark.rows import Rows, TableSchema, table

CATCH_UP_S = (
    60.0  # how long a batch waits for the copy to reach its changelog's end before it fails (and is tried again)
)
FIRST_S = 30.0  # how long a query waits at its start for a table's schema, before it is tried again
BACKOFF_S = (
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    60.0,
    600.0,
)  # before the copy is begun again; the last for a table that is too large
SHOWN = 5  # rows that were left out and are shown with their reason
_PASSING = 4  # the longest pause after an error that waiting mends is BACKOFF_S[_PASSING]
_POLL_S = 0.5
_REQUEST_S = 10.0
_CHUNK = 5_000
_KEPT = 2  # snapshots that a reader keeps from being removed: the one it reads and the one before

_log = logging.getLogger(__name__)

Tell = Callable[[str, dict[str, Any]], None]  # of a table: its name and what is known of its copy


@dataclass(frozen=True)
class Identity:
    """The topics that a copy was made of: id and number of partitions, of the table's topic and of `_millstream.schemas`."""

    topics: tuple[tuple[str, str, int], ...]

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Every (topic, partition)."""
        return [(name, p) for name, _, count in self.topics for p in range(count)]


@dataclass(frozen=True)
class Snapshot:
    """A table at a moment, in files that do not change. size: bytes of its rows as JSON."""

    schema: TableSchema
    files: tuple[tuple[Path, int], ...]  # with their lengths in bytes
    size: int
    rows: int


@dataclass(eq=False)
class Reader:
    """Keeps the snapshots that it was given last from being removed, for as long as it lives."""

    held: deque[Snapshot] = field(default_factory=lambda: deque(maxlen=_KEPT))


class _Again(Exception):
    """The topics are others now: read them from their beginning."""


class TableCopy:
    """The copy of one table. Start it, ask for snapshots, close it."""

    def __init__(self, kafka: Kafka, name: str, folder: Path, tell: Tell) -> None:
        """folder: of this table's files alone; what is in it is removed."""
        self.name = name
        self._kafka = kafka
        self._tell = tell
        self._files = _Files(name, folder)
        self._changed = threading.Condition()
        self._rows = Rows(name)
        self._identity: Identity | None = None
        self._again = False
        self._reached: dict[tuple[str, int], int] = {}
        self._error: MillstreamError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"millstream-table-{name}", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(5)

    def schema(self, timeout: float = FIRST_S) -> TableSchema:
        """Return the table's columns as soon as they are known. Raises Unreachable when they are not in `timeout` seconds."""
        with self._changed:
            self._wait(lambda: self._rows.schema is not None and not self._rows.schema_error, timeout)
            assert self._rows.schema is not None
            return self._rows.schema

    def snapshot(self, reader: Reader, timeout: float = CATCH_UP_S) -> Snapshot:
        """Return the table with every change that was in its changelog when this was called.

        Raises Unreachable when the copy does not get there in `timeout` seconds, or the table is too large or has no schema.
        """
        deadline = time.monotonic() + timeout
        identity = identify(self._kafka, self.name)
        # Asked on the admin client's connection: on the consumer's own the question would wait behind its long fetches.
        ends = offsets(self._kafka, identity.partitions, LATEST)

        def there() -> bool:
            return self._identity == identity and all(self._reached.get(tp, 0) >= end for tp, end in ends.items())

        with self._changed:
            if self._identity is not None and self._identity != identity:
                self._again = True
            self._wait(there, deadline - time.monotonic())
        snapshot, new = self._files.snapshot(self._rows, self._changed, reader)
        if new:
            self._report()
        return snapshot

    def _wait(self, ready: Callable[[], bool], timeout: float) -> None:
        """With the lock. Raises Unreachable with what is known of the reason."""
        done = self._changed.wait_for(lambda: self._closing.is_set() or self._hopeless() or ready(), timeout)
        if self._closing.is_set():
            raise Unreachable(f"table {self.name!r}: its local copy is closed.")
        if self._hopeless() or not done:
            why = str(self._error) if self._error else self._rows.schema_error
            raise Unreachable(
                f"table {self.name!r}: {why}"
                if why
                else f"table {self.name!r}: the local copy did not catch up with its changelog in {timeout:.0f} s."
                " Has the capture of the table started?"
            )

    def _hopeless(self) -> bool:
        """Whether waiting for the next attempt would take longer than a batch may."""
        return isinstance(self._error, _TooLarge)

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._follow(identify(self._kafka, self.name))
            except _Again:
                _log.info("table %s: its topic was made again, and is read from its beginning", self.name)
                failures = 0
                continue
            except Exception as error:
                failures = 1 if time.monotonic() - began > BACKOFF_S[_PASSING] else failures + 1
                self._closing.wait(self._failed(error, failures))

    def _failed(self, error: Exception, failures: int) -> float:
        """Note an error; return how long to wait before the copy is begun again."""
        large = error if isinstance(error, MillstreamError) and self._rows.too_large else None
        with self._changed:
            self._error = _TooLarge(str(large)) if large else _passing(error)
            self._rows.clear()
            self._identity = None
            self._changed.notify_all()
        pause = BACKOFF_S[-1] if large else BACKOFF_S[min(failures - 1, _PASSING)]
        (_log.warning if failures > 2 or large else _log.info)("table %s: %s", self.name, error)
        self._report()
        return pause

    def _follow(self, identity: Identity) -> None:
        consumer = Consumer(
            config(
                self._kafka,
                group_id="millstream-tables",  # required by the client; nothing is ever committed
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="error",  # an offset that is gone means that the topic is another
                isolation_level="read_committed",
                fetch_wait_max_ms=1000,
                queued_max_messages_kbytes=8192,
            )
        )
        try:
            with self._changed:
                self._rows.clear()
                self._identity, self._again = identity, False
                self._reached = dict.fromkeys(identity.partitions, 0)
            consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in identity.partitions])
            while not self._closing.is_set():
                self._step(consumer)
        finally:
            consumer.close()

    def _step(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_S)
        with self._changed:
            if self._again:
                raise _Again
            if first is None:
                return
            for message in (first, *consumer.consume(_CHUNK, timeout=0)):
                self._take(message)
            self._error = None
            self._changed.notify_all()
        self._report()

    def _take(self, message: Message) -> None:
        error = message.error()
        where = (message.topic() or "", message.partition() or 0)
        offset = message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # The end lies behind transaction markers and compacted offsets, which no message shows.
                self._reached[where] = max(self._reached.get(where, 0), offset)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise _Again
            elif error.fatal() or error.code() in _LASTING:
                raise KafkaException(error)
            return
        if where[0] == SCHEMAS:
            if (message.key() or b"") == self.name.encode() and (value := message.value()) is not None:
                self._rows.describe(value)
        else:
            self._rows.apply(message.key(), message.value())
        self._reached[where] = offset + 1

    def _report(self) -> None:
        with self._changed:
            error = str(self._error) if self._error else self._rows.schema_error
            unread = {**self._rows.unread, **self._files.left_out}
            facts: dict[str, Any] = {
                "state": "failed" if error else "copied" if self._rows.schema else "waiting",
                "error": error or None,
                "rows": len(self._rows),
                "bytes": self._rows.size,
                "left_out": len(unread),
                "reasons": {k.decode("utf-8", "replace")[:100]: unread[k][:200] for k in sorted(unread)[:SHOWN]},
            }
        self._tell(self.name, facts)


class _TooLarge(Unreachable):
    """The table does not fit into a copy; the next attempt is minutes away."""


_LASTING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._FATAL,
}


def _passing(error: Exception) -> Unreachable:
    return error if isinstance(error, Unreachable) else Unreachable(str(error))


def identify(kafka: Kafka, name: str) -> Identity:
    """Return what the table's topics are now. Raises Unreachable when one does not exist yet, or the log does not answer."""
    futures = admin(kafka).describe_topics(TopicCollection([name, SCHEMAS]), request_timeout=_REQUEST_S)
    found = []
    for topic, future in sorted(futures.items()):
        try:
            facts = result(future, kafka, f"topic {topic!r} cannot be described")
        except Unreachable:
            raise
        except MillstreamError as error:
            raise Unreachable(
                f"the table topic {topic!r} cannot be read ({error}); has its capture started?"
            ) from error
        found.append((topic, str(facts.topic_id), len(facts.partitions)))
    return Identity(tuple(found))


class _Files:
    """The Parquet files of one table: one per chunk, written again when the chunk has changed, removed when nobody reads them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.left_out: dict[bytes, str] = {}
        self._name = name
        self._folder = folder
        self._lock = threading.Lock()
        self._current: Snapshot | None = None
        self._versions: dict[int, int] = {}
        self._made: dict[int, tuple[Path, int]] = {}
        self._bad: dict[int, dict[bytes, str]] = {}
        self._written: set[Path] = set()
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.parquet"):
            left.unlink()

    def snapshot(self, rows: Rows, changing: threading.Condition, reader: Reader) -> tuple[Snapshot, bool]:
        """Return the rows as files, and whether they differ from the last time."""
        with self._lock:
            with changing:
                schema, chunks, size, count = rows.schema, rows.chunks, rows.size, len(rows)
                if schema is None or rows.schema_error:
                    why = rows.schema_error or "its columns are not known yet; is its capture running?"
                    raise Unreachable(f"table {self._name!r}: {why}")
                parts = rows.parts(self._versions)
            new = bool(parts) or self._current is None
            if new:
                for part in parts:
                    self._write(part.number, part.rows, schema)
                    self._versions[part.number] = part.version
                self.left_out = {key: why for bad in self._bad.values() for key, why in bad.items()}
                files = tuple(self._made[n] for n in range(chunks) if n in self._made)
                self._current = Snapshot(schema, files, size, count - len(self.left_out))
            assert self._current is not None
            self._readers.add(reader)
            reader.held.append(self._current)
            if new:
                self._prune()
            return self._current, new

    def _write(self, number: int, rows: Mapping[bytes, bytes], schema: TableSchema) -> None:
        content, bad = table(rows, schema)
        self._bad[number] = bad
        self._made.pop(number, None)
        if not content.num_rows:
            return
        self._number += 1
        path = self._folder / f"{number}-{self._number}.parquet"
        self._written.add(path)
        pq.write_table(content, path)
        self._made[number] = (path, path.stat().st_size)

    def _prune(self) -> None:
        used = {path for path, _ in self._made.values()}
        used |= {path for reader in self._readers for held in reader.held for path, _ in held.files}
        for path in self._written - used:
            with suppress(FileNotFoundError):
                path.unlink()
        self._written &= used
