"""Files: descriptors that live as long as somebody reads from them, durable replacement, and their bound.

A `File` closes its descriptor when the last reference to it is gone. A reader holds one in its slice, so a segment
that retention deletes or compaction replaces stays readable to those who were reading it, and needs no counting.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from millstream.log import failpoints

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


def write_all(fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of `data` at `position`; OSError when the disk takes only a part (which then may be there)."""
    written = os.pwrite(fd, data, position)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(rest):
        more = os.pwrite(fd, rest[written:], position + written)
        if more == 0:
            raise OSError(28, "the file system took no more bytes")
        written += more


def read_into(fd: int, buffer: memoryview, position: int) -> int:
    """Read at `position` until `buffer` is full or the file ends; the number of bytes read."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], position + done)
        if count == 0:
            break
        done += count
    return done


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed entries of `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, *, point: str, sync: bool = True) -> None:
    """Put `data` under `path` so that a crash leaves the old content or the new one, never a mixture.

    With `sync` it is on disk when this returns.
    """
    # Two threads may write the same index at once; each has its own file, and their content is the same.
    temporary = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data, 0)
        if sync:
            os.fsync(fd)
        failpoints.reach(point)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    if sync:
        sync_folder(path.parent)


def remove_leftovers(folder: Path) -> list[str]:
    """Remove temporary files that a crash left in `folder` itself; what was done, in words."""
    found = []
    for entry in os.listdir(folder):
        if entry.endswith(TEMPORARY):
            os.unlink(folder / entry)
            found.append(f"{folder / entry}: a leftover temporary file, removed")
    return found
