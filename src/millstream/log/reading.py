"""Finding batches in a segment: where an offset, a time or a number of bytes leads to, and the slices handed out."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.log.errors import CorruptMessage
from millstream.log.fetched import NotHere
from millstream.log.files import File
from millstream.log.head import BASE_OFFSET, LAST_DELTA, LEADER_EPOCH, LENGTH, MAX_TIMESTAMP
from millstream.log.index import Index
from millstream.log.scan import heads, whole
from millstream.log.segment import Segment
from millstream.protocol.records import OVERHEAD, RecordsError, records

VERIFIED: Final = 4000
"""Batches of one read whose checksums are compared: bounds the time that a read of many tiny batches takes."""
_OFFSET: Final = struct.Struct(">q")


class Slice:
    """Whole batches in a file: `size` bytes at `position` of the descriptor `file`, for os.sendfile or os.pread.

    The descriptor stays open until `release` (or until the slice is forgotten), whatever becomes of the segment.
    """

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self._file: File | None = file
        self.position = position
        self.size = size

    @property
    def file(self) -> int:
        """The file descriptor; ValueError after `release`."""
        if self._file is None:
            raise ValueError("this slice has been released")
        return self._file.fd

    def release(self) -> None:
        """Say that the bytes have been sent; may be repeated."""
        self._file = None

    def __repr__(self) -> str:
        return f"Slice(position={self.position}, size={self.size}{', released' if self._file is None else ''})"


class Read(NamedTuple):
    """What a read found. `aborted` is (producer id, first offset) of transactions to skip; `next_offset` continues.

    `ahead` is what a reader who continues as before will soon miss: to be fetched beside what is served.
    """

    slices: list[Slice]
    start_offset: int
    end_offset: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    next_offset: int
    ahead: NotHere | None = None

    @property
    def size(self) -> int:
        """Bytes in all slices."""
        return sum(piece.size for piece in self.slices)


class Piece(NamedTuple):
    """Whole batches of one segment: bytes `position` to `stop`, and the offset behind the last of them."""

    position: int
    stop: int
    next_offset: int


def locate(segment: Segment, file: File, index: Index, offset: int) -> int:
    """Position of the batch that holds `offset`, or of the next one if compaction took it; the size if none is left."""
    near = offset - segment.base
    noted, position = index.at_offset(near)
    if noted == near and position:
        return position
    if segment.gaps:
        check_offsets(segment, file, index, position)
    return locate_from(segment, file, position, segment.base + noted, segment.size, offset)


def check_offsets(segment: Segment, file: File, index: Index, position: int) -> int:
    """Compare the offsets of the batches around `position` with their sum; where they end. CorruptMessage.

    Only where records are missing between others: elsewhere each offset follows from the one before.
    """
    summed = index.summed(position)
    if summed is None:
        return segment.size
    begin, end, expected = summed
    end = end or segment.size
    found = 0
    for _, head in heads(file.fd, begin, end, segment.name):
        found = crc32c(_OFFSET.pack(head[BASE_OFFSET]), found)
    if found != expected:
        raise CorruptMessage(f"{segment.name}: between bytes {begin} and {end} a batch has a wrong offset", begin)
    return end


def locate_from(segment: Segment, file: File, position: int, expected: int, stop: int, offset: int) -> int:
    """As `locate`, from the batch at `position`, of offset `expected`, to `stop`, which stands for "none is left".

    CorruptMessage when the batch that should hold `offset` says that it holds others: offsets are not under a batch's
    checksum, but follow each other.
    """
    damaged = -1
    for at, head in heads(file.fd, position, stop, segment.name):
        base, last = head[BASE_OFFSET], head[BASE_OFFSET] + head[LAST_DELTA]
        if base == expected or (base > expected and (segment.gaps or damaged >= 0)):
            if last >= offset:
                if damaged >= 0 and base > offset:
                    break
                return at
            expected, damaged = last + 1, -1
        elif damaged < 0:
            damaged = at
    if damaged >= 0:
        raise CorruptMessage(
            f"{segment.name}: the batch at byte {damaged} does not begin with offset {expected} as it should", damaged
        )
    return stop


def trusted(
    segment: Segment, file: File, index: Index, position: int, offset: int, limit: int, room: int, *, one: bool
) -> Piece | None:
    """Batches from `position` on that this process wrote: up to offset `limit`, `room` bytes, at least one if `one`."""
    stop, following = segment.size, segment.end_offset
    if limit < following:
        stop, following = locate(segment, file, index, limit), limit
    if stop - position <= room:
        return Piece(position, stop, following) if stop > position else None
    best: Piece | None = None
    near = max(position, index.at_position(position + room))
    for at, head in heads(file.fd, near, stop, segment.name):
        after = at + head[LENGTH] + OVERHEAD
        if after > position + room:
            if best is None and at > position:
                best = Piece(position, at, head[BASE_OFFSET])
            elif best is None and one:
                best = Piece(position, after, head[BASE_OFFSET] + head[LAST_DELTA] + 1)
            break
        best = Piece(position, after, head[BASE_OFFSET] + head[LAST_DELTA] + 1)
    return best


def verified(
    segment: Segment,
    file: File,
    index: Index,
    position: int,
    offset: int,
    limit: int,
    room: int,
    *,
    one: bool,
    stop: int | None = None,
) -> Piece | None:
    """As `trusted`, for bytes that come from disk: every checksum and the order of offsets are compared.

    CorruptMessage when the first batch is damaged; a later damaged batch ends the piece before it. `file` may hold only
    what comes before the batch at `stop`.
    """
    best: Piece | None = None
    expected = offset
    bound = segment.end_offset
    checked = 0 if segment.gaps else segment.size
    try:
        stop = segment.size if stop is None else stop
        batches = whole(file.fd, position, stop, segment.name, min(256 * 1024, room + 65536))
        for found, (at, head, _) in enumerate(batches, 1):
            base, last = head[BASE_OFFSET], head[BASE_OFFSET] + head[LAST_DELTA]
            if at >= checked:
                checked = check_offsets(segment, file, index, at)
            fits = base <= expected <= last if best is None else base == expected
            if segment.gaps:
                fits = last >= expected and (best is None or base >= expected)
            if not fits or last >= bound or head[LEADER_EPOCH] != 0:
                raise CorruptMessage(
                    f"{segment.name}: the batch at byte {at} says offsets {base} to {last} where {expected} is expected",
                    at,
                )
            if base >= limit:
                break
            after = at + head[LENGTH] + OVERHEAD
            if after - position > room and not (best is None and one):
                break
            best = Piece(position, after, last + 1)
            expected = last + 1
            if found >= VERIFIED or after - position >= room:
                break
    except CorruptMessage:
        if best is None:
            raise
    return best


def at_time(
    segment: Segment, index: Index, windows: Iterable[tuple[File, int, int]], first: int, timestamp: int, start: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record at or after offset `start` that is not older than `timestamp`.

    `windows` are neighbouring parts of the segment: file, position and end; the first batch there has offset `first`.
    CorruptMessage when a batch on the way is damaged.
    """
    expected = first
    checked = 0 if segment.gaps else segment.size
    for file, position, stop in windows:
        for at, head, batch in whole(file.fd, position, stop, segment.name, 64 * 1024):
            if at >= checked:
                checked = check_offsets(segment, file, index, at)
            # Not under the checksum, as in `verified`.
            if (
                head[BASE_OFFSET] < expected
                or (head[BASE_OFFSET] > expected and not segment.gaps)
                or head[LEADER_EPOCH] != 0
            ):
                raise CorruptMessage(
                    f"{segment.name}: the batch at byte {at} says offset {head[BASE_OFFSET]} where {expected} is expected",
                    at,
                )
            expected = head[BASE_OFFSET] + head[LAST_DELTA] + 1
            if head[MAX_TIMESTAMP] < timestamp or expected <= start:
                continue
            try:
                for record in records(batch):
                    if record.timestamp >= timestamp and record.offset >= start:
                        return record.offset, record.timestamp
            except RecordsError:
                return max(head[BASE_OFFSET], start), head[MAX_TIMESTAMP]
    return None


def newest(segment: Segment, windows: Iterable[tuple[File, int, int]], start: int) -> int:
    """Largest timestamp of the records at and after offset `start`, -1 if there is none; `windows` as in `at_time`."""
    found = -1
    for file, position, stop in windows:
        for at, head in heads(file.fd, position, stop, segment.name):
            if head[BASE_OFFSET] >= start:
                found = max(found, head[MAX_TIMESTAMP])
            elif head[BASE_OFFSET] + head[LAST_DELTA] >= start:
                _, _, batch = next(whole(file.fd, at, stop, segment.name))
                try:
                    found = max((r.timestamp for r in records(batch) if r.offset >= start), default=-1)
                except RecordsError:
                    found = head[MAX_TIMESTAMP]
    return found
