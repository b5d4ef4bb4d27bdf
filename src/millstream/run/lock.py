"""The lock on a data folder: one supervisor at a time. It ends with its holder, however that one ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from millstream.settings import MillstreamError

FILE = "lock"
# A command that looks whether a supervisor runs holds the lock shared for an instant; a start must not fail on that.
_PATIENCE = 1.0


class Lock:
    """An exclusive lock on `folder`, with the holder's pid in it. The descriptor is not inherited by child processes."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises MillstreamError naming the process that holds it."""
        self._fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _PATIENCE
        while not _try(self._fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
                os.close(self._fd)
                raise MillstreamError(
                    f"the data folder {folder} is in use by process {holder or 'unknown'}: another `millstream` runs there."
                    " End that one, or choose another folder with --data."
                )
            time.sleep(0.02)
        os.truncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the folder free. The file stays: removing it would let two others lock different files of one name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def held(folder: Path) -> bool:
    """Return whether a supervisor holds the folder now. Changes nothing."""
    try:
        fd = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
