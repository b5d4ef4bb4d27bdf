"""The sparse index of a segment: from offsets and times to byte positions, and the transactions that were aborted.

Everything here can be computed from the segment's `.log` file; the `.index` file saves the scan. Format, version 2:

    header, big-endian: magic "MSIX" | version u16 = 2 | flags u16 (1 = offsets have gaps, 2 = with sums) | entries u32 |
        aborted transactions u32 | size of the .log u64 | end offset i64 | first timestamp i64 | max timestamp i64 |
        offset of max timestamp i64 | crc32c u32 of everything behind the header | crc32c u32 of the header before this
    entries times u64, little-endian: (base offset - segment's base offset) << 32 | position
    entries times i64, little-endian: largest timestamp of all batches before that position
    aborted times 4 i64, little-endian: producer id | first offset | last offset (the marker's) | last stable offset
    with sums, entries times u32, little-endian: crc32c of the base offsets (i64, big-endian) of the batches from that
        position to the next: offsets are not under a batch's checksum, and where compaction took records they do not
        follow from each other

Version 1 had one checksum, crc32c u32 of the header (with this field 0) and everything that follows, and no sums.

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
VERSION: Final = 2
GAPS: Final = 1
SUMS: Final = 2
_HEADER: Final = struct.Struct(">4sHHIIQqqqqII")
_HEADER_1: Final = struct.Struct(">4sHHIIQqqqqI")
HEADER_SIZE: Final = _HEADER.size
_SUMMED: Final = struct.Struct(">q")
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

    __slots__ = ("aborted", "offsets", "sums", "times")

    def __init__(self) -> None:
        self.offsets: array[int] = array("Q")
        self.times: array[int] = array("q")
        self.aborted: list[Aborted] = []
        self.sums: array[int] = array("I")

    @property
    def memory(self) -> int:
        """Bytes that this index occupies, roughly."""
        return 16 * len(self.offsets) + 4 * len(self.sums) + 120 * len(self.aborted) + 500

    def add(self, relative: int, position: int, max_timestamp_before: int) -> None:
        """Note that the batch with base offset `relative` (to the segment's) begins at `position`."""
        self.offsets.append(relative << 32 | position)
        self.times.append(max_timestamp_before)

    def sum_up(self, base: int) -> None:
        """Count the base offset of the batch after which (or for which) the newest entry was noted into its sum."""
        if len(self.sums) < len(self.offsets):
            self.sums.append(0)
        self.sums[-1] = crc32c(_SUMMED.pack(base), self.sums[-1])

    def summed(self, position: int) -> tuple[int, int, int] | None:
        """(position, end, sum) of the batches between two entries, around `position`; end 0: the segment's; None: no sums."""
        found = bisect_right(self.offsets, position, key=_position) - 1
        if found < 0 or not self.sums:
            return None
        end = self.offsets[found + 1] & _POSITION if found + 1 < len(self.offsets) else 0
        return self.offsets[found] & _POSITION, end, self.sums[found]

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

    def at_time(self, timestamp: int) -> tuple[int, int]:
        """(relative offset, position) of a noted batch before which every one is older than `timestamp`; (0, 0) if none."""
        found = bisect_left(self.times, timestamp) - 1
        if found < 0:
            return 0, 0
        entry = self.offsets[found]
        return entry >> 32, entry & _POSITION


def _position(entry: int) -> int:
    return entry & _POSITION


def dump(index: Index, facts: Facts) -> bytes:
    """The content of the `.index` file."""
    body = bytearray(_little(index.offsets) + _little(index.times))
    for entry in index.aborted:
        body += _ABORTED.pack(*entry)
    sums = facts.gaps and len(index.sums) == len(index.offsets)
    if sums:
        body += _little(index.sums)
    fields = (
        MAGIC,
        VERSION,
        (GAPS if facts.gaps else 0) | (SUMS if sums else 0),
        len(index.offsets),
        len(index.aborted),
        facts.size,
        facts.end_offset,
        facts.first_timestamp,
        facts.max_timestamp,
        facts.max_timestamp_offset,
        crc32c(body),
    )
    header = _HEADER.pack(*fields, 0)[:-4]
    return header + crc32c(header).to_bytes(4) + bytes(body)


def load_facts(data: bytes, file_size: int) -> Facts | None:
    """The facts in an index file's first bytes; None when they are not those of a file of `file_size` bytes.

    Of a file of version 1 all bytes are needed.
    """
    if len(data) >= HEADER_SIZE and data[:6] == MAGIC + VERSION.to_bytes(2):
        if crc32c(memoryview(data)[: HEADER_SIZE - 4]) != int.from_bytes(data[HEADER_SIZE - 4 : HEADER_SIZE]):
            return None
        fields = _HEADER.unpack_from(data)
    elif len(data) >= _HEADER_1.size and len(data) == file_size and data[:6] == MAGIC + b"\0\1":
        fields = _HEADER_1.unpack_from(data)
        sealed = crc32c(_HEADER_1.pack(*fields[:-1], 0))
        if crc32c(memoryview(data)[_HEADER_1.size :], sealed) != fields[-1]:
            return None
    else:
        return None
    _, version, flags, entries, aborted, size, end, first, latest, latest_offset = fields[:10]
    header = HEADER_SIZE if version == VERSION else _HEADER_1.size
    if file_size != header + (20 if flags & SUMS else 16) * entries + _ABORTED.size * aborted:
        return None
    return Facts(size, end, first, latest, latest_offset, bool(flags & GAPS), aborted)


def load(data: bytes) -> tuple[Index, Facts] | None:
    """Index and facts from an index file's content; None when it is damaged or of another version."""
    facts = load_facts(data, len(data))
    if facts is None:
        return None
    version, flags, entries, aborted = struct.unpack_from(">HHII", data, len(MAGIC))
    position = HEADER_SIZE if version == VERSION else _HEADER_1.size
    if version == VERSION and crc32c(memoryview(data)[position:]) != _HEADER.unpack_from(data)[-2]:
        return None
    index = Index()
    index.offsets = _native("Q", data[position : (position := position + 8 * entries)])
    index.times = _native("q", data[position : (position := position + 8 * entries)])
    index.aborted = [Aborted(*_ABORTED.unpack_from(data, position + 32 * i)) for i in range(aborted)]
    if flags & SUMS:
        index.sums = _native("I", data[position + 32 * aborted :])
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
