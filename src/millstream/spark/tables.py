"""A local copy of each captured table, kept fresh by its changelog, for streams to join without a look-up over the network.

The changelog is a compacted topic of Debezium envelopes; `_millstream.schemas` says what columns a table has. `Rows` is the pure
part: changes in, rows out. `TableCopies` follows the topics in one thread with one consumer for all tables.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from millstream.app.names import SCHEMAS
from millstream.client.admin import LATEST, ensure_topic, offsets
from millstream.client.connect import config
from millstream.settings import Kafka, MillstreamError

MAX_BYTES = 256 * 2**20  # of one table's changelog values in memory; a larger table is refused rather than half joined
CATCH_UP_S = (
    60.0  # how long a batch waits for the copies to reach the changelogs' ends before it fails (and is tried again)
)
FIRST_S = 300.0  # how long a query waits at its start for a table's schema and first rows
_REQUEST_S = 10.0
_POLL_S = 0.5
_CHUNK = 5_000

_log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
_DECIMAL = pa.decimal128(38, 18)
_SCALE = Decimal(1).scaleb(-18)
_CONTEXT = Context(prec=38)
_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "decimal": _DECIMAL,
    "binary": pa.binary(),
    "json": pa.string(),
}


class TableColumn(msgspec.Struct, frozen=True):
    """A column as `_millstream.schemas` describes it."""

    name: str
    kind: str
    nullable: bool = True


class TableSchema(msgspec.Struct, frozen=True):
    """A value of `_millstream.schemas`: the columns of a table topic and which of them identify a row."""

    topic: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...] = ()

    def arrow(self) -> pa.Schema:
        """Return the schema of the table's frame. Every column is nullable: an older row may lack a newer column."""
        return pa.schema([pa.field(c.name, _ARROW[c.kind]) for c in self.columns])


class _Envelope(msgspec.Struct):
    op: str
    after: dict[str, Any] | None = None


@dataclass
class Rows:
    """The latest row of every key, by the message's key. Raises MillstreamError when a table outgrows MAX_BYTES."""

    topic: str
    schema: TableSchema | None = None
    version: int = 0  # grows with every change, so that a reader knows whether what it made is still good
    size: int = 0
    _rows: dict[bytes, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one message of the changelog. What is no Debezium envelope raises MillstreamError."""
        if value is None:
            self._remove(key)
            return
        try:
            change = msgspec.json.decode(value, type=_Envelope)
        except msgspec.MsgspecError as error:
            raise MillstreamError(f"table topic {self.topic!r}: expected a Debezium envelope, {error}.") from error
        if change.op == "t":
            self._rows.clear()
            self.size = 0
            self.version += 1
        elif change.after is None or change.op == "d":
            self._remove(key)
        elif key is None:
            raise MillstreamError(f"table topic {self.topic!r}: a row without a key; the table needs a primary key.")
        else:
            self._remove(key)
            self._rows[key] = (len(value), change.after)
            self.size += len(value)
            self.version += 1
            if self.size > MAX_BYTES:
                raise MillstreamError(
                    f"table {self.topic!r} has more than {MAX_BYTES >> 20} MB of rows, too many for a local copy:"
                    " capture fewer columns, or make its changes a topic and join two streams."
                )

    def _remove(self, key: bytes | None) -> None:
        if key is not None and (old := self._rows.pop(key, None)):
            self.size -= old[0]
            self.version += 1

    def arrow(self) -> pa.Table:
        """Return the rows as Arrow. Raises MillstreamError when the schema is unknown or a value does not fit its column."""
        if self.schema is None:
            raise MillstreamError(f"table {self.topic!r}: its columns are not known yet; is its capture running?")
        rows = [row for _, row in self._rows.values()]
        arrays = [
            pa.array([convert(r.get(c.name), c.kind, self.topic, c.name) for r in rows], _ARROW[c.kind])
            for c in self.schema.columns
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema.arrow())


def convert(value: Any, kind: str, topic: str, column: str) -> Any:
    """Return a JSON value of an envelope as the Python value that Arrow takes for a column's kind.

    Times are ISO 8601 with an offset, or microseconds since 1970 as Debezium writes them; dates ISO 8601 or days since 1970;
    decimals text or numbers, rounded to 18 decimals, NaN and the infinities null; binary base64.
    Raises MillstreamError that names table and column when it is none of these.
    """
    if value is None:
        return None
    try:
        match kind:
            case "timestamp":
                return _EPOCH + timedelta(microseconds=value) if isinstance(value, int) else _time(value)
            case "date":
                return _EPOCH.date() + timedelta(days=value) if isinstance(value, int) else date.fromisoformat(value)
            case "decimal":
                number = Decimal(str(value))
                return number.quantize(_SCALE, ROUND_HALF_EVEN, _CONTEXT) if number.is_finite() else None
            case "binary":
                return base64.b64decode(value, validate=True)
            case "json":
                return value if isinstance(value, str) else msgspec.json.encode(value).decode()
            case "double":
                return float(value)  # PostgreSQL's NaN and infinities travel as text
            case "string":
                return value if isinstance(value, str) else msgspec.json.encode(value).decode()
            case _:
                return value
    except (ValueError, TypeError, ArithmeticError) as error:
        raise MillstreamError(f"table {topic!r}: {value!r} in column {column!r} is no {kind}: {error}.") from error


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)  # noqa: UP017 - `timestamp without time zone`


class TableCopies:
    """Follows the changelogs of tables in one thread. `arrow` gives a table as of a moment; close it in the end."""

    def __init__(self, kafka: Kafka, tables: Iterable[str]) -> None:
        self._kafka = kafka
        self._rows = {name: Rows(name) for name in sorted(set(tables))}
        self._changed = threading.Condition()
        self._reached: dict[tuple[str, int], int] = {}
        self._error: Exception | None = None
        self._closing = False
        self._frames: dict[str, tuple[int, pa.Table]] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow. The table topics must exist."""
        if not self._rows or self._thread:
            return
        ensure_topic(self._kafka, SCHEMAS)
        self._thread = threading.Thread(target=self._run, name="millstream-tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closing = True
        if self._thread:
            self._thread.join(5)

    def versions(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return numbers that change when the tables do."""
        with self._changed:
            return tuple(self._rows[name].version for name in names)

    def arrow(self, name: str, *, timeout: float = CATCH_UP_S) -> pa.Table:
        """Return the table with every change that was in its changelog when this was called.

        Raises MillstreamError when the copy does not get there in `timeout` seconds, or the table is too large or unreadable.
        """
        ends = self._ends([name, SCHEMAS], timeout)
        with self._changed:
            self._wait(lambda: all(self._reached.get(tp, 0) >= end for tp, end in ends.items()), name, timeout)
            rows = self._rows[name]
            made = self._frames.get(name)
            if made is None or made[0] != rows.version:
                made = self._frames[name] = (rows.version, rows.arrow())
            return made[1]

    def wait_for_schema(self, name: str, timeout: float = FIRST_S) -> None:
        """Return when the table's columns are known. Raises MillstreamError when its capture has not said so in time."""
        with self._changed:
            self._wait(lambda: self._rows[name].schema is not None, name, timeout)

    def _wait(self, ready: Any, name: str, timeout: float) -> None:
        if not self._changed.wait_for(lambda: self._error or self._closing or ready(), timeout):
            raise MillstreamError(
                f"table {name!r}: the local copy did not catch up with its changelog in {timeout:.0f} s."
                " Is the broker there, and has the capture of the table started?"
            )
        if self._error:
            raise MillstreamError(f"the local copies of tables stopped: {self._error}") from self._error
        if self._closing:
            raise MillstreamError("the local copies of tables are closed.")

    def _ends(self, topics: Sequence[str], timeout: float) -> dict[tuple[str, int], int]:
        with self._changed:
            self._wait(lambda: bool(self._reached), topics[0], timeout)
            partitions = [tp for tp in self._reached if tp[0] in topics]
        # Asked on the admin client's connection: on the consumer's own the question would wait behind its long fetches.
        return offsets(self._kafka, partitions, LATEST)

    def _run(self) -> None:
        try:
            consumer = self._open()
            try:
                while not self._closing:
                    self._step(consumer)
            finally:
                consumer.close()
        except Exception as error:
            _log.error("tables: %s", error)
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _open(self) -> Consumer:
        consumer = Consumer(
            config(
                self._kafka,
                group_id="millstream-tables",  # required by the client; nothing is ever committed
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level="read_committed",
                fetch_wait_max_ms=1000,
                queued_max_messages_kbytes=8192,
            )
        )
        deadline = time.monotonic() + FIRST_S
        while True:
            known = consumer.list_topics(timeout=_REQUEST_S).topics
            missing = [name for name in (SCHEMAS, *self._rows) if name not in known]
            if not missing:
                break
            if time.monotonic() > deadline or self._closing:
                raise MillstreamError(f"the table topic {missing[-1]!r} does not exist; has its capture started?")
            time.sleep(_POLL_S)
        partitions = [(name, p) for name in (SCHEMAS, *self._rows) for p in known[name].partitions]
        consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in partitions])
        with self._changed:
            self._reached = dict.fromkeys(partitions, 0)
            self._changed.notify_all()
        return consumer

    def _step(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_S)
        if first is None:
            return
        with self._changed:
            for message in (first, *consumer.consume(_CHUNK, timeout=0)):
                self._take(message)
            self._changed.notify_all()

    def _take(self, message: Message) -> None:
        error = message.error()
        where = (message.topic() or "", message.partition() or 0)
        offset = message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                # The end lies behind transaction markers and compacted offsets, which no message shows.
                self._reached[where] = max(self._reached.get(where, 0), offset)
            elif error.fatal():
                raise KafkaException(error)
            return
        if where[0] == SCHEMAS:
            self._describe(message.key(), message.value())
        else:
            self._rows[where[0]].apply(message.key(), message.value())
        self._reached[where] = offset + 1

    def _describe(self, key: bytes | None, value: bytes | None) -> None:
        name = (key or b"").decode("utf-8", "replace")
        if name in self._rows and value is not None:
            try:
                schema = msgspec.json.decode(value, type=TableSchema)
            except msgspec.MsgspecError as error:
                raise MillstreamError(f"{SCHEMAS}: the schema of {name!r} cannot be read: {error}.") from error
            if unknown := [c for c in schema.columns if c.kind not in _ARROW]:
                raise MillstreamError(
                    f"table {name!r}: column {unknown[0].name!r} is of unknown kind {unknown[0].kind!r}."
                )
            if schema != self._rows[name].schema:
                self._rows[name].schema = schema
                self._rows[name].version += 1
