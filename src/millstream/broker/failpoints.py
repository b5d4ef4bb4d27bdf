"""Places in the coordinators where a crash may hurt."""

from __future__ import annotations

from typing import Final

from millstream.settings.failpoints import reach, tripped

EPOCH_STORED: Final = "a producer's epoch stored, not synced, not answered"
ADDED: Final = "a partition's being in a transaction stored, not synced, nothing of it there"
ADDED_SYNCED: Final = "a partition's being in a transaction synced, nothing of it there"
OFFSETS_STORED: Final = "committed offsets stored, not synced, not answered"
PENDING_STORED: Final = "offsets of a transaction stored, not synced, not answered"
RECORDS_SYNCED: Final = "records of a transaction synced, its end not stored"
PREPARED: Final = "the end of a transaction stored, not synced, no marker written"
PREPARED_SYNCED: Final = "the end of a transaction synced, no marker written"
MARKED_ONE: Final = "one marker of a transaction written, others to follow"
MARKED: Final = "all markers of a transaction written, not synced"
MARKED_SYNCED: Final = "all markers of a transaction synced, its completion not stored"
COMPLETED: Final = "the completion of a transaction stored, not synced, not answered"
ALL: Final = tuple(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))

SHARE_STORED: Final = "a change of a share partition stored, not made, not answered"
SHARE_STARTED: Final = "partitions of a share group begun, not yet said to be"
SHARE_ENDED: Final = "a share group said to be gone, the states of its partitions still there"

# Those of share groups, which need other loads to be reached.
SHARE: Final = (SHARE_STORED, SHARE_STARTED, SHARE_ENDED)

__all__ = ["ALL", "SHARE", "reach", "tripped"]
