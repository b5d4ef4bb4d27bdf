"""What a read of the log holds for a share group: which batches may be delivered, and which offsets are to be skipped.

Markers of transactions, batches of aborted ones (where the group reads committed records only), and offsets whose records
compaction has taken are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.log.head import ATTRIBUTES, BASE_OFFSET, LAST_DELTA, LENGTH, PRODUCER_ID
from millstream.log.scan import heads
from millstream.protocol.records import CONTROL, OVERHEAD, TRANSACTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.log import Slice
    from millstream.log.reading import Read


class Batch(NamedTuple):
    """A record batch in a slice: where it is, and its first and last offsets."""

    slice: Slice
    position: int
    size: int
    first: int
    last: int


class Found(NamedTuple):
    """Batches that may be delivered, and offsets (first to last) that may not, both in order."""

    batches: list[Batch]
    skipped: list[tuple[int, int]]


def found(read: Read, offset: int, limit: int, most: int) -> Found:
    """What a read from `offset` holds before `limit`, up to so many batches. Raises CorruptMessage."""
    batches: list[Batch] = []
    skipped: list[tuple[int, int]] = []
    waiting = sorted(read.aborted, key=lambda each: -each[1])  # the next transaction to come is the last
    aborting: set[int] = set()
    at = offset
    for piece in read.slices:
        for position, head in heads(piece.file, piece.position, piece.position + piece.size, "a read"):
            first, last = head[BASE_OFFSET], head[BASE_OFFSET] + head[LAST_DELTA]
            if first >= limit or len(batches) >= most:
                return Found(batches, skipped)
            while waiting and waiting[-1][1] <= last:
                aborting.add(waiting.pop()[0])
            if first > at:
                skipped.append((at, first - 1))
            attributes, producer = head[ATTRIBUTES], head[PRODUCER_ID]
            if attributes & CONTROL:
                aborting.discard(producer)
                skipped.append((max(first, at), last))
            elif attributes & TRANSACTIONAL and producer in aborting:
                skipped.append((max(first, at), last))
            else:
                batches.append(Batch(piece, position, head[LENGTH] + OVERHEAD, first, last))
            at = last + 1
    if read.slices and min(read.next_offset, limit) > at:
        skipped.append((at, min(read.next_offset, limit) - 1))
    return Found(batches, skipped)


def trimmed(slices: list[Slice], batches: Iterable[Batch], first: int, last: int) -> list[Slice]:
    """The slices, cut to the batches that hold offsets from `first` to `last`; the others are released."""
    wanted = [batch for batch in batches if batch.last >= first and batch.first <= last]
    kept = []
    for piece in slices:
        here = [batch for batch in wanted if batch.slice is piece]
        if here:
            piece.position = here[0].position
            piece.size = here[-1].position + here[-1].size - here[0].position
            kept.append(piece)
        else:
            piece.release()
    return kept
