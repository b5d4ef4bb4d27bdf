"""The latest row of every key of a captured table, from the Debezium envelopes of its changelog. Pure: changes in, rows out.

`_millstream.schemas` says what columns a table has. Rows are kept as the JSON that came, in chunks by a hash of the key, so that
a change costs the conversion of one chunk and not of the table. What cannot be read concerns its own row only: that row is left
out, with the reason, until another message for its key comes.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa

from millstream.app.names import SCHEMAS
from millstream.settings import MillstreamError, Unreachable

# Of one table's keys and rows, as JSON, in memory; a larger table is refused rather than half joined.
MAX_BYTES = 256 * 2**20
CHUNK_ROWS = 16384  # rows in a chunk, on average, before the chunks are doubled
MAX_CHUNKS = 256

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
    after: msgspec.Raw = msgspec.Raw(b"null")


@dataclass
class Chunk:
    """A part of a table. `version` grows with every change; `rows` are JSON objects by the message's key."""

    version: int = 0
    rows: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A chunk as it was at `version`, safe to convert while the table changes."""

    number: int
    version: int
    rows: Mapping[bytes, bytes]


class Rows:
    """The latest row of every key of the table topic `topic`.

    size: bytes of keys and rows. unread: why the latest message of a key cannot be read. version: grows with every change.
    """

    def __init__(self, topic: str, schema: TableSchema | None = None) -> None:
        self.topic = topic
        self.schema = schema
        self.schema_error = ""
        self.version = 0
        self.size = 0
        self.too_large = False
        self.unread: dict[bytes, str] = {}
        self._chunks = [Chunk()]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one message of the changelog. Raises Unreachable when the table outgrows MAX_BYTES."""
        if value is None:
            self._remove(key)
            return
        try:
            change = msgspec.json.decode(value, type=_Envelope)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._leave_out(key, f"expected a Debezium envelope, {error}")
            return
        after = bytes(change.after)
        if change.op == "t":
            self.clear()
        elif change.op == "d" or after == b"null":
            self._remove(key)
        elif key is None:
            self._leave_out(key, "a row without a key; the table needs a primary key")
        elif not after.startswith(b"{"):
            self._leave_out(key, f"expected an object as the row after the change, got {after[:40]!r}")
        else:
            self._keep(key, after)

    def describe(self, value: bytes) -> None:
        """Take in what `_millstream.schemas` says of this table; what cannot be read is kept as `schema_error`."""
        try:
            schema = msgspec.json.decode(value, type=TableSchema)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.schema_error = f"its columns in {SCHEMAS} cannot be read: {error}"
            return
        if unknown := [c for c in schema.columns if c.kind not in _ARROW]:
            self.schema_error = f"its column {unknown[0].name!r} is of unknown kind {unknown[0].kind!r}"
            return
        self.schema_error = ""
        if schema != self.schema:
            self.schema = schema
            for chunk in self._chunks:
                self._touch(chunk)

    def clear(self) -> None:
        """Forget every row."""
        self.unread.clear()
        self._chunks = [Chunk(chunk.version) for chunk in self._chunks]
        self.size = self._count = 0
        self.too_large = False
        for chunk in self._chunks:
            self._touch(chunk)

    def parts(self, known: Mapping[int, int]) -> list[Part]:
        """Return the chunks whose version is another than the one `known` by their number; the rows are copies."""
        return [
            Part(number, chunk.version, dict(chunk.rows))
            for number, chunk in enumerate(self._chunks)
            if known.get(number) != chunk.version
        ]

    @property
    def chunks(self) -> int:
        """Into how many chunks the rows are divided: a power of two, which only grows."""
        return len(self._chunks)

    def _keep(self, key: bytes, row: bytes) -> None:
        self._remove(key)
        chunk = self._chunk(key)
        chunk.rows[key] = row
        self._count += 1
        self.size += len(key) + len(row)
        self._touch(chunk)
        self._check()
        if self._count > CHUNK_ROWS * len(self._chunks) and len(self._chunks) < MAX_CHUNKS:
            self._divide()

    def _leave_out(self, key: bytes | None, why: str) -> None:
        self._remove(key)
        self.unread[key or b""] = why
        self.size += len(key or b"") + len(why)
        self._check()

    def _remove(self, key: bytes | None) -> None:
        if key is None:
            return
        if why := self.unread.pop(key, None):
            self.size -= len(key) + len(why)
        chunk = self._chunk(key)
        if (old := chunk.rows.pop(key, None)) is not None:
            self.size -= len(key) + len(old)
            self._count -= 1
            self._touch(chunk)

    def _chunk(self, key: bytes) -> Chunk:
        return self._chunks[zlib.crc32(key) & (len(self._chunks) - 1)]

    def _touch(self, chunk: Chunk) -> None:
        self.version += 1
        chunk.version = self.version

    def _check(self) -> None:
        if self.size > MAX_BYTES:
            self.too_large = True
            raise Unreachable(
                f"table {self.topic!r} has more than {MAX_BYTES >> 20} MB of rows, too many for a local copy:"
                " capture fewer columns, or make its changes a topic and join two streams."
            )

    def _divide(self) -> None:
        old = self._chunks
        self._chunks = [Chunk() for _ in range(2 * len(old))]
        for part in old:
            for key, row in part.rows.items():
                self._chunk(key).rows[key] = row
        for chunk in self._chunks:
            self._touch(chunk)


def table(rows: Mapping[bytes, bytes], schema: TableSchema) -> tuple[pa.Table, dict[bytes, str]]:
    """Return rows (JSON objects by key) as Arrow, and why those rows were left out that do not fit the schema."""
    keys, objects, bad = [], [], {}
    for key, row in rows.items():
        try:
            objects.append(msgspec.json.decode(row))
            keys.append(key)
        except (msgspec.MsgspecError, RecursionError) as error:
            bad[key] = str(error)
    try:
        return _arrow(objects, schema), bad
    except (MillstreamError, pa.ArrowException):
        pass  # find the rows it is
    good = []
    for key, row in zip(keys, objects, strict=True):
        try:
            _arrow([row], schema)
            good.append(row)
        except (MillstreamError, pa.ArrowException) as error:
            bad[key] = str(error)
    return _arrow(good, schema), bad


def _arrow(rows: Sequence[dict[str, Any]], schema: TableSchema) -> pa.Table:
    arrays = []
    for column in schema.columns:
        try:
            values = [convert(row.get(column.name), column.kind, schema.topic, column.name) for row in rows]
            arrays.append(pa.array(values, _ARROW[column.kind]))
        except pa.ArrowException as error:
            raise MillstreamError(
                f"table {schema.topic!r}: a value of column {column.name!r} is no {column.kind}: {error}."
            ) from error
        except OverflowError as error:
            raise MillstreamError(
                f"table {schema.topic!r}: a value of column {column.name!r} is out of the range of {column.kind}: {error}."
            ) from error
    return pa.Table.from_arrays(arrays, schema=schema.arrow())


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
