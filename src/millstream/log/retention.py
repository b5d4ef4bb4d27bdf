"""Which segments have outlived their topic's retention: a decision on values, without files.

The rules are those of Kafka's UnifiedLog.deleteOldSegments: from the oldest on, as long as the whole segment is older
than retention.ms, or the log would still hold retention.bytes without it, or it lies before the log's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """What retention has to know of a segment; `newest` is its largest timestamp, -1 = none."""

    base: int
    size: int
    end_offset: int
    newest: int


def deletable(
    pieces: Sequence[Piece], *, start: int, now: int, retention_ms: int, retention_bytes: int, limit: int
) -> int:
    """How many of the first segments may go; all of them means that a new one has to be begun first.

    Negative `retention_ms` or `retention_bytes` keep everything. Nothing at or behind offset `limit` (the last stable
    offset) goes, and an empty last segment stays.
    """
    excess = sum(piece.size for piece in pieces) - retention_bytes if retention_bytes >= 0 else -1
    count = 0
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        if (last and piece.size == 0) or piece.end_offset > limit:
            break
        if piece.size == 0:
            continue  # Compaction emptied it: it goes when the next one goes.
        # The bytes before the start count as gone only when the next segment begins at or before it.
        before_start = not last and pieces[i + 1].base <= start
        too_old = retention_ms >= 0 and piece.newest >= 0 and now - piece.newest > retention_ms
        too_much = excess >= piece.size
        if not (before_start or too_old or too_much):
            break
        if excess >= 0:
            excess -= piece.size
        count = i + 1
    return count
