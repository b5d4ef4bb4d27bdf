"""The checkpoint of a partition: offsets that cannot be computed from its segments, or only slowly.

File `checkpoint`, JSON, version 1, replaced as a whole:
    start     first offset that may be read (DeleteRecords and retention move it)
    flushed   offset before which everything has been synced to disk: not scanned after a crash
    cleaned   offset before which the log has been compacted
    dropped   records that the ring of a topic with millstream.overload=drop has overwritten (absent: 0)
    dropped_bytes   and their bytes
    end, size end offset and bytes of the last segment at a clean shutdown; -1 otherwise
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from millstream.log import failpoints
from millstream.log.files import replace

NAME: Final = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True):
    """See the top of the file; offsets and bytes."""

    start: int = 0
    flushed: int = 0
    cleaned: int = 0
    end: int = -1
    size: int = -1
    version: int = 1
    dropped: int = 0
    dropped_bytes: int = 0


def read(folder: Path) -> Checkpoint | None:
    """The checkpoint in a partition's folder; None when it is missing or damaged."""
    try:
        found = msgspec.json.decode((folder / NAME).read_bytes(), type=Checkpoint)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.version == 1 else None


def write(folder: Path, checkpoint: Checkpoint, *, sync: bool) -> None:
    """Replace the checkpoint; with `sync` it survives a power cut."""
    replace(folder / NAME, msgspec.json.encode(checkpoint), point=failpoints.CHECKPOINT_WRITTEN, sync=sync)
