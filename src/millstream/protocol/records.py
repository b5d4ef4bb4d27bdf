"""Kafka's record batch format, version 2: headers, records, control markers and compression, as bytes in and out.

Source: https://kafka.apache.org/documentation/#messageformat and Kafka's DefaultRecordBatch, DefaultRecord and
EndTransactionMarker. A batch is a header of 61 bytes followed by `count` records, which a codec may have
compressed as one piece:

    base offset i64 | length i32 (of what follows) | leader epoch i32 | magic i8 = 2 | crc u32 |
    attributes i16 | last offset delta i32 | base timestamp i64 | max timestamp i64 |
    producer id i64 | producer epoch i16 | base sequence i32 | count i32 | records

The CRC-32C covers everything from the attributes to the end, so a log can assign offset and leader epoch without
computing it again. Attributes: bits 0-2 codec, 3 timestamp type (1 = log append time), 4 transactional, 5 control,
6 the base timestamp is a delete horizon (set by compaction, see KIP-534).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from millstream.protocol import walk
from millstream.protocol.compression import CODECS as CODECS
from millstream.protocol.compression import GZIP as GZIP
from millstream.protocol.compression import LZ4 as LZ4
from millstream.protocol.compression import MAX_UNCOMPRESSED as MAX_UNCOMPRESSED
from millstream.protocol.compression import NONE as NONE
from millstream.protocol.compression import SNAPPY as SNAPPY
from millstream.protocol.compression import ZSTD as ZSTD
from millstream.protocol.compression import Buffer as Buffer
from millstream.protocol.compression import CompressionError as CompressionError
from millstream.protocol.compression import TooLarge as TooLarge
from millstream.protocol.compression import compress as compress
from millstream.protocol.compression import decompress as decompress
from millstream.protocol.walk import Entry as Entry
from millstream.protocol.walk import Record as Record
from millstream.protocol.walk import RecordsError as RecordsError

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
OVERHEAD = 12
"""Bytes before those that the length field counts: the base offset and the length itself."""
CRC_START = 21
"""Where the checksummed part begins: at the attributes."""
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 0x7FFF_FFFF

_CRC = struct.Struct(">I")
_LONG = struct.Struct(">q")
_BASE_TIMESTAMP = 27
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class Header(NamedTuple):
    """The 61 bytes before a batch's records; timestamps are epoch milliseconds (-1 = none)."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record (also when compaction has removed that record)."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Number of the codec, an index of CODECS when it is known."""
        return self.attributes & CODEC_MASK

    @property
    def log_append_time(self) -> bool:
        """Whether the log's clock, not the producer's, gave the timestamps."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the batch holds a control marker, never shown to consumers."""
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """Time (epoch ms) from which compaction may drop this batch's tombstones or marker; None = not yet set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record (it wraps after 2**31 - 1), -1 without an idempotent producer."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


class Marker(NamedTuple):
    """What a control batch says: how its producer's transaction ended, and the coordinator's epoch that decided it."""

    commit: bool
    coordinator_epoch: int


def header(buffer: Buffer, position: int = 0) -> Header:
    """The header at `position`; RecordsError when there are not 61 bytes or the magic is not 2."""
    if len(buffer) - position < HEADER_SIZE:
        raise RecordsError(
            f"a record batch header needs {HEADER_SIZE} bytes, only {max(0, len(buffer) - position)} are left"
        )
    found = Header._make(HEADER.unpack_from(buffer, position))
    if found.magic != MAGIC:
        raise RecordsError(f"expected a record batch of magic {MAGIC}, got magic {found.magic}")
    return found


def headers(buffer: Buffer) -> Iterator[tuple[int, Header]]:
    """Position and header of each batch in `buffer`, in order; RecordsError at a batch that is cut short."""
    position = 0
    while position < len(buffer):
        found = header(buffer, position)
        if found.length < HEADER_SIZE - OVERHEAD or position + found.size > len(buffer):
            raise RecordsError(
                f"the batch at byte {position} announces {found.size} bytes, {len(buffer) - position} are there"
            )
        yield position, found
        position += found.size


def checksum(batch: Buffer) -> int:
    """The CRC-32C that belongs into the header of `batch` (exactly one batch)."""
    return int(crc32c(memoryview(batch)[CRC_START:]))


def valid(batch: Buffer) -> bool:
    """Whether the checksum of `batch` (exactly one batch) is right."""
    expected: int = _CRC.unpack_from(batch, CRC_START - 4)[0]
    return checksum(batch) == expected


def seal(batch: bytearray | memoryview) -> None:
    """Compute the checksum of `batch` (exactly one batch) again and put it into its header."""
    _CRC.pack_into(batch, CRC_START - 4, checksum(batch))


def records(batch: Buffer, limit: int = MAX_UNCOMPRESSED) -> Iterator[Record]:
    """The records of the first batch in `batch`, unpacked; absolute offsets and timestamps.

    RecordsError when the records do not add up to what the header says, or unpack to more than `limit` bytes.
    The checksum is not looked at: see `valid`.
    """
    found, data = _unpacked(batch, limit)
    fixed = found.max_timestamp if found.attributes & LOG_APPEND_TIME else None
    count, base, times = found.record_count, found.base_offset, found.base_timestamp
    return walk.records(data, count, base, times, found.last_offset_delta, fixed)


def entries(batch: Buffer, limit: int = MAX_UNCOMPRESSED) -> list[Entry]:
    """The records of the first batch in `batch`, unpacked, as far as their keys: quicker than `records`.

    RecordsError as there, but for what is wrong behind the key and the value's length.
    """
    found, data = _unpacked(batch, limit)
    return walk.entries(data, found.record_count, found.base_offset, found.base_timestamp, found.last_offset_delta)


def note_keys(batch: Buffer, start: int, found: dict[bytes, int]) -> None:
    """Put the offsets of the keys in the first batch in `batch` from `start` on into `found`; see walk.note_keys."""
    head, data = _unpacked(batch, MAX_UNCOMPRESSED)
    walk.note_keys(data, head.record_count, head.base_offset, head.last_offset_delta, start, found)


def _unpacked(batch: Buffer, limit: int) -> tuple[Header, bytes]:
    found = header(batch)
    if found.size > len(batch) or found.size < HEADER_SIZE:
        raise RecordsError(f"the batch announces {found.size} bytes, {len(batch)} are there")
    return found, bytes(decompress(found.codec, memoryview(batch)[HEADER_SIZE : found.size], limit))


def set_max_timestamp(batch: bytearray | memoryview, timestamp: int) -> None:
    """Correct the header's largest timestamp, and the checksum with it."""
    _LONG.pack_into(batch, _BASE_TIMESTAMP + 8, timestamp)
    seal(batch)


def put_varint(out: bytearray, value: int) -> None:
    """Append `value` to `out`, zigzag-encoded in base 128."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


Message = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


def build(
    messages: Iterable[Message],
    timestamp: int | Sequence[int],
    *,
    codec: int = NONE,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> bytearray:
    """A batch of `messages` (key, value[, headers]), as a producer makes it; one timestamp for all or one for each."""
    found = [
        Record(
            base_offset + i,
            timestamp if isinstance(timestamp, int) else timestamp[i],
            message[0],
            message[1],
            tuple(message[2]) if len(message) == 3 else (),
        )
        for i, message in enumerate(messages)
    ]
    if not found:
        raise ValueError("a batch needs at least one message")
    template = Header(
        base_offset=base_offset,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL if transactional else 0),
        last_offset_delta=len(found) - 1,
        base_timestamp=found[0].timestamp,
        max_timestamp=max(record.timestamp for record in found),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(found),
    )
    return encode(template, found)


def encode(template: Header, found: Sequence[Record]) -> bytearray:
    """A batch with the header `template` and these records; length, count and checksum are computed.

    Offsets and timestamps of the records are stored relative to the template's base offset and base timestamp,
    so a batch of which compaction kept some records keeps its offset range and its sequence numbers. In a batch
    of log append time the records' own timestamps do not matter.
    """
    body = bytearray()
    piece = bytearray()
    for record in found:
        piece.clear()
        piece.append(0)
        put_varint(piece, record.timestamp - template.base_timestamp)
        put_varint(piece, record.offset - template.base_offset)
        _put_bytes(piece, record.key)
        _put_bytes(piece, record.value)
        put_varint(piece, len(record.headers))
        for name, value in record.headers:
            _put_bytes(piece, name.encode())
            _put_bytes(piece, value)
        put_varint(body, len(piece))
        body += piece
    return wrap(template, body, len(found))


def wrap(template: Header, body: Buffer, count: int, level: int | None = None) -> bytearray:
    """A batch with the header `template` around `count` encoded records; length, count and checksum are computed.

    level: as in `compression.compress`.
    """
    data: Buffer = compress(template.codec, body, level) if count else b""
    batch = bytearray(HEADER_SIZE + len(data))
    batch[HEADER_SIZE:] = data
    HEADER.pack_into(batch, 0, *template._replace(length=len(batch) - OVERHEAD, record_count=count, crc=0))
    seal(batch)
    return batch


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        put_varint(out, len(value))
        out += value


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """The control batch that ends a transaction of this producer."""
    record = Record(0, timestamp, _MARKER_KEY.pack(0, 1 if commit else 0), _MARKER_VALUE.pack(0, coordinator_epoch))
    template = Header(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL | CONTROL,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    return encode(template, [record])


def marker(batch: Buffer) -> Marker | None:
    """What the control batch `batch` says; None when compaction emptied it or it is of a type unknown here."""
    for record in records(batch):
        if record.key is None or len(record.key) < 4 or record.value is None or len(record.value) < 6:
            raise RecordsError("a control record with too short a key or value")
        version, kind = _MARKER_KEY.unpack_from(record.key)
        if version < 0 or kind not in (0, 1):
            return None
        return Marker(kind == 1, _MARKER_VALUE.unpack_from(record.value)[1])
    return None
