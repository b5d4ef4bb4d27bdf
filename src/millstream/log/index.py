"""The sparse index of a segment: from offsets and times to byte positions, and the transactions that were aborted.

Everything here can be computed from the segment's `.log` file; the `.index` file saves the scan. Format, version 1:

    header, big-endian: magic "MSIX" | version u16 = 1 | flags u16 (1 = offsets have gaps) | entries u32 |
        aborted transactions u32 | size of the .log u64 | end offset i64 | first timestamp i64 | max timestamp i64 |
        offset of max timestamp i64 | crc32c u32 of the header (with this field 0) and everything that follows
    entries times u64, little-endian: (base offset - segment's base offset) << 32 | position
    entries times i64, little-endian: largest timestamp of all batches before that position
    aborted times 4 i64, little-endian: producer id | first offset | last offset (the marker's) | last stable offset

A file whose checksum, sizes or version do not fit is not an error: the index is computed again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

MAGIC: Final = b"MSIX"
VERSION: Final = 1
GAPS: Final = 1
_HEADER: Final = struct.Struct(">4sHHIIQqqqqI")
HEADER_SIZE: Final = _HEADER.size
_ABORTED: Final = struct.Struct("<qqqq")
_POSITION: Final = 0xFFFF_FFFF


class Facts(NamedTuple):
    """What is worth knowing about a segment without opening it; times in epoch ms, -1 = none."""

    size: int
    end_offset: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    gaps: bool
    aborted: int


class Aborted(NamedTuple):
    """An aborted transaction: read-committed readers skip this producer's batches from first_offset to last_offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Index:
    """Positions of some batches of a segment, in order, with the largest timestamp before each."""

    __slots__ = ("aborted", "offsets", "times")

    def __init__(self) -> None:
        self.offsets: array[int] = array("Q")
        self.times: array[int] = array("q")
        self.aborted: list[Aborted] = []

    @property
    def memory(self) -> int:
        """Bytes that this index occupies, roughly."""
        return 16 * len(self.offsets) + 120 * len(self.aborted) + 500

    def add(self, relative: int, position: int, max_timestamp_before: int) -> None:
        """Note that the batch with base offset `relative` (to the segment's) begins at `position`."""
        self.offsets.append(relative << 32 | position)
        self.times.append(max_timestamp_before)

    def at_offset(self, relative: int) -> tuple[int, int]:
        """(relative offset, position) of the last noted batch that begins at or before `relative`; (0, 0) if none."""
        found = bisect_right(self.offsets, relative << 32 | _POSITION) - 1
        if found < 0:
            return 0, 0
        entry = self.offsets[found]
        return entry >> 32, entry & _POSITION

    def at_position(self, position: int) -> int:
        """The last noted position at or before `position`; 0 if none."""
        found = bisect_right(self.offsets, position, key=_position) - 1
        return self.offsets[found] & _POSITION if found >= 0 else 0

    def at_time(self, timestamp: int) -> int:
        """A position before which every batch is older than `timestamp`."""
        found = bisect_left(self.times, timestamp) - 1
        return self.offsets[found] & _POSITION if found >= 0 else 0


def _position(entry: int) -> int:
    return entry & _POSITION


def dump(index: Index, facts: Facts) -> bytes:
    """The content of the `.index` file."""
    body = bytearray(_little(index.offsets) + _little(index.times))
    for entry in index.aborted:
        body += _ABORTED.pack(*entry)
    fields = (
        MAGIC,
        VERSION,
        GAPS if facts.gaps else 0,
        len(index.offsets),
        len(index.aborted),
        facts.size,
        facts.end_offset,
        facts.first_timestamp,
        facts.max_timestamp,
        facts.max_timestamp_offset,
    )
    crc = crc32c(body, crc32c(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + bytes(body)


def load_facts(data: bytes, file_size: int) -> Facts | None:
    """The facts in an index file's first bytes; None when they cannot be those of a file of `file_size` bytes."""
    if len(data) < HEADER_SIZE:
        return None
    magic, version, flags, entries, aborted, size, end, first, latest, latest_offset, _ = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        return None
    if file_size != HEADER_SIZE + 16 * entries + _ABORTED.size * aborted:
        return None
    return Facts(size, end, first, latest, latest_offset, bool(flags & GAPS), aborted)


def load(data: bytes) -> tuple[Index, Facts] | None:
    """Index and facts from an index file's content; None when it is damaged or of another version."""
    facts = load_facts(data, len(data))
    if facts is None:
        return None
    fields = _HEADER.unpack_from(data)
    if crc32c(memoryview(data)[HEADER_SIZE:], crc32c(_HEADER.pack(*fields[:-1], 0))) != fields[-1]:
        return None
    index = Index()
    entries = fields[3]
    middle = HEADER_SIZE + 8 * entries
    end = middle + 8 * entries
    index.offsets = _native("Q", data[HEADER_SIZE:middle])
    index.times = _native("q", data[middle:end])
    index.aborted = [Aborted(*_ABORTED.unpack_from(data, end + 32 * i)) for i in range(fields[4])]
    return index, facts


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _native(typecode: str, data: bytes) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
