"""Replacing segments by a compacted one, so that a crash at any moment leaves the old ones or the new one.

1. The new segment is written and synced as `<base>.log.cleaned`.
2. `compaction.json` {"version": 1, "base": first base offset, "replaces": [base offsets]} is put in place: decided.
3. `<base>.log.cleaned` is renamed to `<base>.log`, which replaces the first old one; the others are removed, and so
   are the indexes of all. The index of the new one comes from memory, or recovery computes it.
4. `compaction.json` is removed.

The new one stands even when it is empty, so that the first segment continues to tell where the log begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from millstream.log import failpoints
from millstream.log.files import replace, sync_folder
from millstream.log.segment import file_name

NAME: Final = "compaction.json"


class Decision(msgspec.Struct, frozen=True):
    """Which segments are replaced by the one of `base`, itself among them."""

    base: int
    replaces: list[int]
    version: int = 1


def decide(folder: Path, decision: Decision) -> None:
    """Step 2: after this the swap happens, now or at the next start."""
    replace(folder / NAME, msgspec.json.encode(decision), point=failpoints.CLEAN_WRITTEN)
    failpoints.reach(failpoints.CLEAN_DECIDED)


def carry_out(folder: Path, decision: Decision) -> None:
    """Steps 3 and 4; may be repeated."""
    new = folder / file_name(decision.base, "log.cleaned")
    if new.exists():
        (folder / file_name(decision.base, "index")).unlink(missing_ok=True)
        new.rename(folder / file_name(decision.base, "log"))
    failpoints.reach(failpoints.CLEAN_RENAMED)
    for base in decision.replaces:
        if base != decision.base:
            for suffix in ("log", "index", "snapshot"):
                (folder / file_name(base, suffix)).unlink(missing_ok=True)
            failpoints.reach(failpoints.CLEAN_REMOVED)
    sync_folder(folder)
    failpoints.reach(failpoints.CLEAN_SWAPPED)
    (folder / NAME).unlink(missing_ok=True)


def finish(folder: Path) -> list[str]:
    """At a start: finish a swap that was decided; what was done, in words."""
    path = folder / NAME
    try:
        decision = msgspec.json.decode(path.read_bytes(), type=Decision)
    except FileNotFoundError:
        return []
    except msgspec.DecodeError:
        path.unlink()
        return [f"{path}: unreadable, removed"]
    carry_out(folder, decision)
    return [f"{folder}: finished a compaction that had been decided (segments {decision.replaces})"]
