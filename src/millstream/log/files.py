"""Files: descriptors that live as long as somebody reads from them, durable replacement, and their bound.

A `File` closes its descriptor when the last reference to it is gone. A reader holds one in its slice, so a segment
that retention deletes or compaction replaces stays readable to those who were reading it, and needs no counting.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from millstream.log import failpoints
from millstream.settings import files
from millstream.settings.files import sync_folder, write_all

__all__ = ["TEMPORARY", "File", "read_into", "remove_leftovers", "replace", "sync_folder", "write_all"]

TEMPORARY: Final = (".tmp", ".cleaned")
"""Suffixes of files that are being written and mean nothing yet."""


class File:
    """An open file descriptor, closed when nobody refers to it any more."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def read_into(fd: int, buffer: memoryview, position: int) -> int:
    """Read at `position` until `buffer` is full or the file ends; the number of bytes read."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def replace(path: Path, data: bytes, *, point: str, sync: bool = True) -> None:
    """Put `data` under `path`, see `settings.files.replace`; the failpoint is between writing and renaming."""
    files.replace(path, data, sync=sync, before=lambda: failpoints.reach(point))


def remove_leftovers(folder: Path) -> list[str]:
    """Remove temporary files that a crash left in `folder` itself; what was done, in words."""
    found = []
    for entry in os.listdir(folder):
        if entry.endswith(TEMPORARY):
            os.unlink(folder / entry)
            found.append(f"{folder / entry}: a leftover temporary file, removed")
    return found
