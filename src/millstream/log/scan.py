"""Walking a segment file batch by batch, with or without checking what is in the batches.

The walks give headers as plain tuples (see head.py), because they are the inner loops of recovery, compaction and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

from millstream.log.errors import CorruptMessage
from millstream.log.files import read_into
from millstream.log.head import BASE_OFFSET, CRC, LAST_DELTA, LEADER_EPOCH, LENGTH, MAGIC_BYTE, Head
from millstream.protocol.records import CRC_START, HEADER, HEADER_SIZE, MAGIC, OVERHEAD, valid

Source = Callable[[memoryview, int], int]
"""Fills a buffer from a position on and says how many bytes there were: a file's, or those of an archived segment."""

MAX_SIZE: Final = 2**31 - 1
"""Bytes of a segment and span of its offsets, as in Kafka: positions and relative offsets fit into 32 bits."""

SMALLEST: Final = HEADER_SIZE - OVERHEAD
_CHUNK: Final = 256 * 1024
_HEAD_CHUNK: Final = 16 * 1024
_unpack: Final = HEADER.unpack_from


def heads(fd: int, position: int, stop: int, name: str) -> Iterator[tuple[int, Head]]:
    """Position and header of each batch between two positions, unchecked but for lengths that cannot be."""
    buffer = bytearray(min(_HEAD_CHUNK, max(0, stop - position)))
    view = memoryview(buffer)
    start = filled = 0
    while position < stop:
        if position + HEADER_SIZE > start + filled or position < start:
            start = position
            filled = read_into(fd, view[: min(len(buffer), stop - position)], position)
            if filled < HEADER_SIZE:
                raise CorruptMessage(f"{name}: a batch header is cut short at byte {position} of {stop}", position)
        head: Head = _unpack(buffer, position - start)  # type: ignore[assignment]
        size = head[LENGTH] + OVERHEAD
        if size < HEADER_SIZE or head[MAGIC_BYTE] != MAGIC or position + size > stop:
            raise CorruptMessage(f"{name}: no record batch where one should begin, at byte {position}", position)
        yield position, head
        position += size


def whole(fd: int, position: int, stop: int, name: str, chunk: int = _CHUNK) -> Iterator[tuple[int, Head, memoryview]]:
    """Position, header and bytes of each batch between two positions, checksums verified.

    CorruptMessage at the first batch that is damaged. The bytes are valid until the next step.
    """
    buffer = bytearray(min(chunk, max(0, stop - position)))
    view = memoryview(buffer)
    start = filled = 0
    while position < stop:
        at = position - start
        if at + HEADER_SIZE > filled:
            start, at = position, 0
            filled = read_into(fd, view[: min(len(buffer), stop - position)], position)
            if filled < HEADER_SIZE:
                raise CorruptMessage(f"{name}: a batch header is cut short at byte {position} of {stop}", position)
        head: Head = _unpack(buffer, at)  # type: ignore[assignment]
        size = head[LENGTH] + OVERHEAD
        if size < HEADER_SIZE or head[MAGIC_BYTE] != MAGIC or position + size > stop:
            raise CorruptMessage(f"{name}: no record batch where one should begin, at byte {position}", position)
        if at + size > filled:
            if size > len(buffer):
                buffer = bytearray(size)
                view = memoryview(buffer)
            start, at = position, 0
            filled = read_into(fd, view[: min(len(buffer), stop - position)], position)
            if filled < size:
                raise CorruptMessage(f"{name}: the batch at byte {position} is cut short", position)
        batch = view[at : at + size]
        if crc32c(batch[CRC_START:]) != head[CRC]:
            raise CorruptMessage(
                f"{name}: the batch of offset {head[BASE_OFFSET]} at byte {position} has a wrong checksum: "
                "its bytes changed on disk",
                position,
            )
        yield position, head, batch
        position += size


def survey(
    source: Source,
    position: int,
    size: int,
    base: int,
    expected: int,
    following: int | None,
    *,
    dense: bool = False,
    chunk: int = 4 * _CHUNK,
) -> Iterator[tuple[int, Head, bool]]:
    """Each header that could be one, and whether checksum and offsets are right; ends where no header can be.

    The segment begins at offset `base`, the batch at `position` with offset `expected`; `following` is the base offset
    of the next segment, None if there is none; `dense` says that no offset may be missing.
    """
    exact = dense
    buffer = bytearray(chunk)
    view = memoryview(buffer)
    start = filled = 0
    while position + HEADER_SIZE <= size:
        at = position - start
        if at + HEADER_SIZE > filled:
            start, at = position, 0
            filled = source(view, position)
            if filled < HEADER_SIZE:
                return
        head: Head = _unpack(buffer, at)  # type: ignore[assignment]
        length = head[LENGTH] + OVERHEAD
        if head[MAGIC_BYTE] != MAGIC or head[LENGTH] < SMALLEST or position + length > size:
            return
        if at + length > filled:
            if length > len(buffer):
                buffer = bytearray(length)
                view = memoryview(buffer)
            start, at = position, 0
            filled = source(view, position)
        last = head[BASE_OFFSET] + head[LAST_DELTA]
        good = (
            at + length <= filled
            and valid(view[at : at + length])
            and (head[BASE_OFFSET] == expected or (head[BASE_OFFSET] > expected and not exact))
            and head[LAST_DELTA] >= 0
            and head[LEADER_EPOCH] == 0  # The leader epoch is not under the checksum; the log writes 0.
            and last - base <= MAX_SIZE
            and (following is None or last < following)
        )
        if good:
            expected = last + 1
        exact = dense and good
        yield position, head, good
        position += length
