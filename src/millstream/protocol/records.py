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
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import cramjam
from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
OVERHEAD = 12
"""Bytes before those that the length field counts: the base offset and the length itself."""
CRC_START = 21
"""Where the checksummed part begins: at the attributes."""
MAGIC = 2

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 0x7FFF_FFFF

MAX_UNCOMPRESSED = 128 * 1024 * 1024
"""Largest batch that is unpacked, in bytes: stops a small frame that unpacks to gigabytes. Larger ones are refused."""
SMALLEST_RECORD = 7
"""No record is shorter: length, attributes, timestamp, offset, key length, value length and header count."""

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_BLOCK = 32 * 1024
_CRC = struct.Struct(">I")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BASE_TIMESTAMP = 27
SAME = 6
"""So many records of the same size in a row make it worth looking for a run of them."""
RUN = 16
"""Records of the same size that are looked for together at first; four times as many each time that all of them are."""
_SIGNS = bytes(value & 1 for value in range(256))
"""What is negative in zigzag encoding: odd values."""
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class RecordsError(ValueError):
    """Bytes that are not a readable record batch; the message says what was expected and what came."""


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


class Record(NamedTuple):
    """One message with its absolute offset and timestamp (epoch ms). Headers keep their order and repetitions."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


Entry = tuple[int, int, bytes | None, bool, bytes]
"""A record's offset, timestamp by its producer, key, whether it has no value (a tombstone), and its encoded bytes."""


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
    found = header(batch)
    if found.size > len(batch) or found.size < HEADER_SIZE:
        raise RecordsError(f"the batch announces {found.size} bytes, {len(batch)} are there")
    data = decompress(found.codec, memoryview(batch)[HEADER_SIZE : found.size], limit)
    return _records(data, found)


def _records(data: Buffer, found: Header) -> Iterator[Record]:
    # bytes, because slices of them are the keys and values handed out, and indexing them is fastest.
    data = bytes(data)
    position = 0
    previous = -1
    fixed = found.max_timestamp if found.attributes & LOG_APPEND_TIME else None
    try:
        for _ in range(found.record_count):
            length, position = varint(data, position)
            end = position + length
            if length < SMALLEST_RECORD - 1 or end > len(data):
                raise RecordsError(
                    f"a record of {length} bytes does not fit into the {len(data) - position} that are left"
                )
            delta_time, position = varint(data, position + 1)
            delta, position = varint(data, position)
            key, position = _bytes(data, position)
            value, position = _bytes(data, position)
            count, position = varint(data, position)
            if count == 0:
                fields: tuple[tuple[str, bytes | None], ...] = ()
            elif 0 < count <= length:
                fields, position = _headers(data, position, count)
            else:
                raise RecordsError(f"a record has a header count of {count}")
            if position != end:
                raise RecordsError(f"a record's fields end at byte {position}, its length says {end}")
            if not previous < delta <= found.last_offset_delta:
                raise RecordsError(
                    f"offset delta {delta} after {previous}: expected rising ones up to {found.last_offset_delta}"
                )
            previous = delta
            timestamp = found.base_timestamp + delta_time if fixed is None else fixed
            yield Record(found.base_offset + delta, timestamp, key, value, fields)
    except IndexError:
        raise RecordsError(f"the records end after {len(data)} bytes, inside a record") from None
    if position != len(data):
        raise RecordsError(f"{len(data) - position} bytes follow the batch's {found.record_count} records")


def entries(batch: Buffer, limit: int = MAX_UNCOMPRESSED) -> Iterator[Entry]:
    """The records of the first batch in `batch`, unpacked, as far as their keys: quicker than `records`.

    RecordsError as there, but for what is wrong behind the key and the value's length.
    """
    found = header(batch)
    if found.size > len(batch) or found.size < HEADER_SIZE:
        raise RecordsError(f"the batch announces {found.size} bytes, {len(batch)} are there")
    data = bytes(decompress(found.codec, memoryview(batch)[HEADER_SIZE : found.size], limit))
    base, times = found.base_offset, found.base_timestamp
    after = 0
    previous = -1
    size = len(data)
    try:
        for _ in range(found.record_count):
            begin = after
            # Numbers of one or two bytes, as most are, are read without a call: calls cost more than all the rest.
            number = data[begin]
            if number < 0x80:
                position = begin + 1
            elif (more := data[begin + 1]) < 0x80:
                number, position = number & 0x7F | more << 7, begin + 2
            else:
                number, position = unsigned(data, begin)
            length = number >> 1 ^ -(number & 1)
            after = position + length
            if length < SMALLEST_RECORD - 1 or after > size:
                raise RecordsError(f"a record of {length} bytes does not fit into the {size - position} that are left")
            number = data[position + 1]
            if number < 0x80:
                position += 2
            elif (more := data[position + 2]) < 0x80:
                number, position = number & 0x7F | more << 7, position + 3
            else:
                number, position = unsigned(data, position + 1)
            delta_time = number >> 1 ^ -(number & 1)
            number = data[position]
            if number < 0x80:
                position += 1
            elif (more := data[position + 1]) < 0x80:
                number, position = number & 0x7F | more << 7, position + 2
            else:
                number, position = unsigned(data, position)
            delta = number >> 1 ^ -(number & 1)
            number = data[position]
            if number < 0x80:
                position += 1
                length = number >> 1 ^ -(number & 1)
            else:
                length, position = varint(data, position)
            key = None
            if length >= 0:
                key = data[position : position + length]
                position += length
            number = data[position]
            if number < 0x80:
                position += 1
            elif (more := data[position + 1]) < 0x80:
                number, position = number & 0x7F | more << 7, position + 2
            else:
                number, position = unsigned(data, position)
            length = number >> 1 ^ -(number & 1)
            if position + (length if length > 0 else 0) >= after:
                raise RecordsError(f"a record's key and value do not fit into its {after - begin} bytes")
            if not previous < delta <= found.last_offset_delta:
                raise RecordsError(
                    f"offset delta {delta} after {previous}: expected rising ones up to {found.last_offset_delta}"
                )
            previous = delta
            yield base + delta, times + delta_time, key, length < 0, data[begin:after]
    except IndexError:
        raise RecordsError(f"the records end after {size} bytes, inside a record") from None
    if after != size:
        raise RecordsError(f"{size - after} bytes follow the batch's {found.record_count} records")


def check(batch: Buffer) -> int:
    """Walk the records of one uncompressed batch by their lengths; the largest of their timestamps.

    RecordsError when they do not fill the batch exactly: an encoder counts wrongly. Keys, values and headers are not
    looked at. Every produced byte goes through here, hence no calls for lengths and timestamps of one or two bytes,
    and records of the same size are walked together.
    """
    count = _INT.unpack_from(batch, HEADER_SIZE - 4)[0]
    size = len(batch)
    if size - HEADER_SIZE < count * SMALLEST_RECORD:
        raise RecordsError(f"{count} records do not fit into {size - HEADER_SIZE} bytes")
    data = bytes(batch)  # which is indexed faster than a view
    position = HEADER_SIZE
    # Zigzag-encoded, as all numbers here: even ones are not negative and keep their order. The negative ones are
    # odd, and matter only while there is no other.
    latest, negative = -1, 1 << 64
    least = 2 * SMALLEST_RECORD - 2
    left = count
    before, same, span = -1, 0, RUN
    try:
        while left > 0:
            length = data[position]
            start = position + 1
            if length >= 0x80:
                second = data[start]
                if second < 0x80:
                    length = length & 0x7F | second << 7
                    start += 1
                else:
                    length, start = unsigned(data, position)
            if length < least or length & 1:
                raise RecordsError(f"a record announces {(length >> 1) ^ -(length & 1)} bytes")
            delta = data[start + 1]
            if delta >= 0x80:
                second = data[start + 2]
                delta = delta & 0x7F | second << 7 if second < 0x80 else unsigned(data, start + 1)[0]
            if delta > latest:
                if delta & 1:
                    negative = min(negative, delta)
                else:
                    latest = delta
            left -= 1
            step = start + (length >> 1) - position
            position += step
            if step != before:
                before, same = step, 0
                continue
            same += 1
            if same < SAME or left < RUN:
                continue
            most = left if left < span else span
            run = _equal(data, position, step, start - position + step, most)
            if run:
                delta = _largest(data, start + 1 + step, step, run)
                if delta & 1:
                    negative = min(negative, delta)
                elif delta > latest:
                    latest = delta
                position += run * step
                left -= run
            span = span * 4 if run == most else RUN
            same = same if run == most else 0
    except IndexError:
        raise RecordsError(f"a record begins behind the batch's {size} bytes") from None
    if position != size:
        raise RecordsError(f"{count} records end at byte {position} of a batch of {size} bytes")
    base: int = _LONG.unpack_from(batch, _BASE_TIMESTAMP)[0]
    return base + (latest >> 1 if latest >= 0 else -(negative >> 1) - 1)


def _equal(data: bytes, position: int, step: int, width: int, most: int) -> int:
    """How many of the `most` records at `position`, `step` bytes apart, begin with the `width` bytes of the one before."""
    run = most
    stop = position + most * step
    for at in range(position, position + width):
        same = data[at:stop:step]
        run = min(run, len(same) - len(same.lstrip(data[at - step : at - step + 1])))
    return run


def _largest(data: bytes, first: int, step: int, run: int) -> int:
    """The largest of `run` zigzag-encoded integers, `step` bytes apart, still encoded; see check."""
    ones = data[first : first + run * step : step]
    if len(ones) < run:
        raise IndexError
    if not ones.translate(_SIGNS).strip(b"\0"):  # none is negative
        if max(ones) < 0x80:
            return max(ones)
        twos = data[first + 1 : first + run * step : step]
        if len(twos) == run and min(ones) >= 0x80 and max(twos) < 0x80:
            high, low = max(zip(twos, ones, strict=True))
            return low & 0x7F | high << 7
    found = [unsigned(data, first + i * step)[0] for i in range(run)]
    return max((value for value in found if not value & 1), default=min(found))


def set_max_timestamp(batch: bytearray | memoryview, timestamp: int) -> None:
    """Correct the header's largest timestamp, and the checksum with it."""
    _LONG.pack_into(batch, _BASE_TIMESTAMP + 8, timestamp)
    seal(batch)


def varint(data: Buffer, position: int) -> tuple[int, int]:
    """The zigzag-encoded integer at `position` and the position after it; IndexError when the data ends in it."""
    value = data[position]
    position += 1
    if value >= 0x80:
        byte = data[position]
        if byte < 0x80:
            value = value & 0x7F | byte << 7
            position += 1
        else:
            value, position = unsigned(data, position - 1)
    return (value >> 1) ^ -(value & 1), position


def unsigned(data: Buffer, position: int) -> tuple[int, int]:
    """The integer in base 128 at `position` and the position after it; IndexError when the data ends in it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise RecordsError("a variable-length integer is longer than ten bytes")


def put_varint(out: bytearray, value: int) -> None:
    """Append `value` to `out`, zigzag-encoded in base 128."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise RecordsError(f"a field of {length} bytes does not fit into the {len(data) - position} that are left")
    return data[position:end], end


def _headers(data: bytes, position: int, count: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    found = []
    for _ in range(count):
        name, position = _bytes(data, position)
        value, position = _bytes(data, position)
        if name is None:
            raise RecordsError("a record header without a name")
        try:
            found.append((name.decode(), value))
        except UnicodeDecodeError:
            raise RecordsError(f"the name of a record header is not UTF-8: {name!r}") from None
    return tuple(found), position


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


def wrap(template: Header, body: Buffer, count: int) -> bytearray:
    """A batch with the header `template` around `count` encoded records; length, count and checksum are computed."""
    data: Buffer = compress(template.codec, body) if count else b""
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


def compress(codec: int, data: Buffer) -> Buffer:
    """`data` in the framing that Kafka's clients expect of the codec; ValueError for an unknown codec."""
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        out = bytearray(_XERIAL + _INT.pack(1) + _INT.pack(1))
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK])))
            out += _INT.pack(len(block)) + block
        return out
    if codec == LZ4:
        return bytes(cramjam.lz4.compress(bytes(data)))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(bytes(data)))
    raise ValueError(f"codec {codec} is unknown: expected 0 to 4 ({', '.join(CODECS)})")


def decompress(codec: int, data: Buffer, limit: int = MAX_UNCOMPRESSED) -> Buffer:
    """The records that `data` holds, unpacked; RecordsError when it is damaged or larger than `limit` bytes."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gunzip(data, limit)
    if codec == SNAPPY:
        return _unsnappy(bytes(data), limit)
    if codec == LZ4:
        return _bounded("lz4", cramjam.lz4.decompress_into, bytes(data), limit)
    if codec == ZSTD:
        return _bounded("zstd", cramjam.zstd.decompress_into, bytes(data), limit)
    raise RecordsError(f"codec {codec} is unknown: expected 0 to 4 ({', '.join(CODECS)})")


def _gunzip(data: Buffer, limit: int) -> Buffer:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        out = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise RecordsError(f"the gzip data is damaged: {error}") from None
    if not unpacker.eof:
        if len(out) >= limit or unpacker.unconsumed_tail:
            raise _too_large("gzip", limit)
        raise RecordsError("the gzip data is damaged: it ends too soon")
    return out


def _unsnappy(data: bytes, limit: int) -> Buffer:
    out = bytearray()
    try:
        if not data.startswith(_XERIAL):
            return _snappy_block(data, limit)
        position = len(_XERIAL) + 8
        while position < len(data):
            size = _INT.unpack_from(data, position)[0]
            position += 4
            if size < 0 or position + size > len(data):
                raise RecordsError(f"the snappy data is damaged: a block of {size} bytes")
            if len(out) + _snappy_size(data[position : position + size]) > limit:
                raise _too_large("snappy", limit)
            out += _snappy_block(data[position : position + size], limit)
            position += size
    except struct.error:
        raise RecordsError("the snappy data is damaged: it ends too soon") from None
    return out


def _snappy_size(data: bytes) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(data))
    except cramjam.DecompressionError as error:
        raise RecordsError(f"the snappy data is damaged: {error}") from None


def _snappy_block(data: bytes, limit: int) -> bytes:
    if _snappy_size(data) > limit:
        raise _too_large("snappy", limit)
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise RecordsError(f"the snappy data is damaged: {error}") from None


def _bounded(name: str, unpack: Callable[[bytes, bytearray], int], data: bytes, limit: int) -> Buffer:
    # These frames need not say how large their content is: room is doubled until it fits, up to the limit.
    room = min(limit, max(64 * 1024, 8 * len(data)))
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: unpack(data, out)]
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            if "failed to write whole buffer" not in str(error):
                raise RecordsError(f"the {name} data is damaged: {error}") from None
            if room >= limit:
                raise _too_large(name, limit) from None
            room = min(limit, room * 8)


def _too_large(name: str, limit: int) -> RecordsError:
    return RecordsError(f"the {name} data unpacks to more than the {limit} bytes that are allowed")
