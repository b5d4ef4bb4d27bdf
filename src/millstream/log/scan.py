"""Walking a segment file batch by batch, with or without checking what is in the batches.

Both walks give raw header tuples in the order of `records.HEADER`, because they are the inner loops of recovery,
compaction and reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from millstream.log.errors import CorruptMessage
from millstream.log.files import read_into
from millstream.protocol.records import CRC_START, HEADER, HEADER_SIZE, MAGIC, OVERHEAD

Head = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
producer_id, producer_epoch, base_sequence, count"""

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
        size = head[1] + OVERHEAD
        if head[3] != MAGIC or head[1] < SMALLEST or position + size > stop:
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
        size = head[1] + OVERHEAD
        if head[3] != MAGIC or head[1] < SMALLEST or position + size > stop:
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
        if crc32c(batch[CRC_START:]) != head[4]:
            raise CorruptMessage(
                f"{name}: the batch of offset {head[0]} at byte {position} has a wrong checksum: its bytes changed on disk",
                position,
            )
        yield position, head, batch
        position += size
