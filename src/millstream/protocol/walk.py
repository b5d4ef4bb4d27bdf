"""The records inside a batch, one after the other: their lengths, offsets, timestamps, keys, values and headers.

A record is `length varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value | headers`, where key and
value are `length varint | bytes` (-1: none), and headers `count varint` times a name and a value (Kafka's DefaultRecord). Numbers
are zigzag-encoded in base 128.

Every produced record passes `check`, and every record that is compacted `entries`. Where there is a C compiler, mypyc makes an
extension of this file when the package is built (hatch_build.py); elsewhere it runs as it is, some ten times slower. Hence the
machine's integers in its signatures, and no more than this in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from time import sleep
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mypy_extensions import i64

SMALLEST_RECORD: Final = 7
"""No record is shorter: length, attributes, timestamp, offset, key length, value length and header count."""
HASHED: Final = 16
"""Size of a hash that stands for a key of so many bytes or more."""
MAX_BAD: Final = 1000
"""So many records of a batch are named that may not be taken."""
_TURN: Final = 0xFFF
"""So often other threads get their turn: inside compiled code the interpreter does not see to that. See `entries`."""
_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


class RecordsError(ValueError):
    """Bytes that are not a readable record batch; the message says what was expected and what came."""


class Record(NamedTuple):
    """One message with its absolute offset and timestamp (epoch ms). Headers keep their order and repetitions."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


Bad = tuple[int, int, bool]
"""A record that may not be taken: its number in the batch, its timestamp, whether it is its missing key that is wrong."""

Entry = tuple[int, int, bytes | None, bool, bytes]
"""A record's offset, timestamp by its producer, key, whether it has no value (a tombstone), and its encoded bytes."""


def check(
    data: bytes, count: i64, base_timestamp: i64, largest: i64, oldest: i64, newest: i64, keyed: bool, bad: list[Bad]
) -> i64:
    """Walk the `count` records that `data` holds to the last header; the newest of their timestamps, -1 if all are negative.

    RecordsError when they do not fill `data` exactly, are not numbered from 0, or one has more than `largest` bytes. Those whose
    timestamp is neither -1 nor from `oldest` to `newest`, and if `keyed` those without a key, go into `bad`, up to MAX_BAD.
    """
    size: i64 = len(data)
    if count < 1 or size // SMALLEST_RECORD < count:
        raise RecordsError(f"{count} records do not fit into {size} bytes")
    latest: i64 = -1
    position: i64 = 0
    try:
        for i in range(count):
            if i & _TURN == _TURN:
                sleep(0)
            number, position = varint(data, position)
            if number & 1 or number >> 1 < SMALLEST_RECORD - 1 or number >> 1 > size - position:
                raise RecordsError(
                    f"a record of {_signed(number)} bytes does not fit into the {size - position} that are left"
                )
            if number >> 1 > largest:
                raise RecordsError(f"a record of {number >> 1} bytes: max.decompressed.message.bytes allows {largest}")
            after = position + (number >> 1)
            delta_time, position = varlong(data, position + 1)
            delta, position = varint(data, position)
            if delta != 2 * i:
                raise RecordsError(f"offset delta {_signed(delta)} of record {i}: expected its number in the batch")
            # Most of these numbers have one byte: without a call each this takes half the time.
            number = data[position]
            position += 1
            if number >= 0x80:
                number, position = varint(data, position - 1)
            without_key = number & 1 != 0
            if not without_key:
                position += number >> 1
            number = data[position]
            position += 1
            if number >= 0x80:
                number, position = varint(data, position - 1)
            if not number & 1:
                position += number >> 1
            headers: i64 = data[position]
            position += 1
            if headers:
                position = _pass_headers(data, position - 1, after)
            if position != after:
                raise RecordsError(f"a record's fields end at byte {position}, its length says {after}")
            timestamp = _sum(base_timestamp, delta_time)
            if timestamp > latest:
                latest = timestamp
            if keyed and without_key:
                if len(bad) < MAX_BAD:
                    bad.append((i, -1, True))
            elif timestamp != -1 and not oldest <= timestamp <= newest and len(bad) < MAX_BAD:
                bad.append((i, timestamp, False))
    except IndexError:
        raise _cut(size) from None
    if position != size:
        raise _more(data, position, count)
    return latest


def _pass_headers(data: bytes, position: i64, after: i64) -> i64:
    number, position = varint(data, position)
    if number & 1 or number >> 1 > after - position:
        raise RecordsError(f"a record has a header count of {_signed(number)}")
    for _ in range(number >> 1):
        size, position = varint(data, position)
        if size & 1:
            raise RecordsError("a record header without a name")
        size, position = varint(data, position + (size >> 1))
        if not size & 1:
            position += size >> 1
    return position


def entries(data: bytes, count: i64, base_offset: i64, base_timestamp: i64, last_delta: i64) -> list[Entry]:
    """The `count` records that `data` holds, as far as their keys; their offsets rise from `base_offset` up to `last_delta` more.

    RecordsError when they do not add up to that, but for what is wrong in their headers.
    """
    found: list[Entry] = []
    begin: i64 = 0
    previous: i64 = -1
    for i in range(count):
        if i & _TURN == _TURN:
            sleep(0)
        after, delta_time, delta, key_at, key_end, _value_at, value_end = _record(data, begin)
        if not previous < delta <= last_delta:
            raise _order(delta, previous, last_delta)
        previous = delta
        key = data[key_at:key_end] if key_end >= 0 else None
        found.append((base_offset + delta, _sum(base_timestamp, delta_time), key, value_end < 0, data[begin:after]))
        begin = after
    if begin != len(data):
        raise _more(data, begin, count)
    return found


def note_keys(data: bytes, count: i64, base_offset: i64, last_delta: i64, start: i64, found: dict[bytes, int]) -> None:
    """Put into `found` the offset of each key in `data`, doubled, and one more for a tombstone; not of those below `start`.

    Keys stand in it by their `fingerprint`. RecordsError as from `entries`, with a part of the keys put in.
    """
    begin: i64 = 0
    previous: i64 = -1
    for i in range(count):
        if i & _TURN == _TURN:
            sleep(0)
        begin, _delta_time, delta, key_at, key_end, _value_at, value_end = _record(data, begin)
        if not previous < delta <= last_delta:
            raise _order(delta, previous, last_delta)
        previous = delta
        if key_end >= 0 and base_offset + delta >= start:
            key = data[key_at:key_end]
            found[fingerprint(key)] = (base_offset + delta) * 2 + (1 if value_end < 0 else 0)
    if begin != len(data):
        raise _more(data, begin, count)


def fingerprint(key: bytes) -> bytes:
    """A key shorter than HASHED bytes itself, a hash of HASHED bytes of a longer one: the two are never equal."""
    return key if len(key) < HASHED else blake2b(key, digest_size=HASHED).digest()


def records(
    data: bytes, count: i64, base_offset: i64, base_timestamp: i64, last_delta: i64, fixed: i64 | None
) -> Iterator[Record]:
    """The `count` records that `data` holds, whole. `fixed`: the timestamp of all of them, where the log gave it.

    RecordsError, when it gets there, at what does not add up to that.
    """
    after: i64 = 0
    previous: i64 = -1
    for _ in range(count):
        after, delta_time, delta, key_at, key_end, value_at, value_end = _record(data, after)
        if not previous < delta <= last_delta:
            raise _order(delta, previous, last_delta)
        previous = delta
        key = data[key_at:key_end] if key_end >= 0 else None
        value = data[value_at:value_end] if value_end >= 0 else None
        headers = _headers(data, value_end if value_end >= 0 else value_at, after)
        yield Record(
            base_offset + delta, _sum(base_timestamp, delta_time) if fixed is None else fixed, key, value, headers
        )
    if after != len(data):
        raise _more(data, after, count)


def _record(data: bytes, begin: i64) -> tuple[i64, i64, i64, i64, i64, i64, i64]:
    # Where the record at `begin` ends, its deltas of time and offset, and where its key and value begin and end (-1: none).
    size: i64 = len(data)
    try:
        number, position = varint(data, begin)
        if number & 1 or number >> 1 < SMALLEST_RECORD - 1 or number >> 1 > size - position:
            raise RecordsError(
                f"a record of {_signed(number)} bytes does not fit into the {size - position} that are left"
            )
        after = position + (number >> 1)
        delta_time, position = varlong(data, position + 1)
        delta, position = varint(data, position)
        number, key_at = varint(data, position)
        key_end: i64 = -1 if number & 1 else key_at + (number >> 1)
        number, value_at = varint(data, key_at if key_end < 0 else key_end)
        value_end: i64 = -1 if number & 1 else value_at + (number >> 1)
    except IndexError:
        raise _cut(size) from None
    if value_at >= after or value_end >= after:
        raise RecordsError(f"a record's key and value do not fit into its {after - begin} bytes")
    return after, delta_time, _signed(delta), key_at, key_end, value_at, value_end


def _headers(data: bytes, position: i64, after: i64) -> tuple[tuple[str, bytes | None], ...]:
    found: list[tuple[str, bytes | None]] = []
    try:
        number, position = varint(data, position)
        if number & 1 or number >> 1 > after - position:
            raise RecordsError(f"a record has a header count of {_signed(number)}")
        for _ in range(number >> 1):
            name, position = _field(data, position)
            value, position = _field(data, position)
            if name is None:
                raise RecordsError("a record header without a name")
            try:
                found.append((name.decode(), value))
            except UnicodeDecodeError:
                raise RecordsError(f"the name of a record header is not UTF-8: {name!r}") from None
    except IndexError:
        raise _cut(len(data)) from None
    if position != after:
        raise RecordsError(f"a record's fields end at byte {position}, its length says {after}")
    return tuple(found)


def varint(data: bytes, position: i64) -> tuple[i64, i64]:
    """The integer of 32 bits at `position`, still zigzag-encoded (odd: negative), and the position after it.

    IndexError when the data ends in it, RecordsError when it has more than five bytes.
    """
    value: i64 = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, 35, 7):
        byte: i64 = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF, position
    raise RecordsError("a variable-length integer of 32 bits is longer than five bytes")


def varlong(data: bytes, position: i64) -> tuple[i64, i64]:
    """The integer of 64 bits at `position`, decoded, and the position after it; errors as in `varint`, after ten bytes."""
    value: i64 = data[position]
    position += 1
    if value >= 0x80:
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte: i64 = data[position]
            position += 1
            # Of the tenth byte only one bit is left.
            value |= (byte & 0x7F if shift < 63 else byte & 1) << shift
            if byte < 0x80:
                break
        else:
            raise RecordsError("a variable-length integer of 64 bits is longer than ten bytes")
    # The 64th bit is the sign of a machine's integer and an ordinary one of Python's: the mask makes both shift alike.
    return value >> 1 & _MAX ^ -(value & 1), position


def _signed(number: i64) -> i64:
    return number >> 1 ^ -(number & 1)


def _field(data: bytes, position: i64) -> tuple[bytes | None, i64]:
    number, position = varint(data, position)
    if number & 1:
        return None, position
    size: i64 = len(data)
    if number >> 1 > size - position:
        raise RecordsError(f"a field of {number >> 1} bytes does not fit into the {size - position} that are left")
    end = position + (number >> 1)
    return data[position:end], end


def _sum(base: i64, delta: i64) -> i64:
    if base > _MAX - delta if delta > 0 else base < -_MAX - 1 - delta:
        raise RecordsError(f"a timestamp {delta} ms from the batch's {base} is no 64-bit integer")
    return base + delta


def _order(delta: i64, previous: i64, last: i64) -> RecordsError:
    return RecordsError(f"offset delta {delta} after {previous}: expected rising ones up to {last}")


def _more(data: bytes, position: i64, count: i64) -> RecordsError:
    return RecordsError(f"{len(data) - position} bytes follow the batch's {count} records")


def _cut(size: i64) -> RecordsError:
    return RecordsError(f"the records end after {size} bytes, inside a record")
