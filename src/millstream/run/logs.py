"""The log file of one process: bounded, rotated, with the last lines at hand for the message when things go wrong."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from datetime import datetime
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024  # a process that logs in a loop must not fill the disk: then the file is set aside
KEEP = 3  # files set aside: process.log.1 is the newest
LAST_LINES = 20


class LogFile:
    """Appends lines to `path`; at `max_bytes` it becomes `path`.1, and the oldest of `keep` is dropped."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, keep: int = KEEP) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._size = 0
        self.last: deque[str] = deque(maxlen=LAST_LINES)

    def line(self, text: str) -> None:
        """Append a line of the process. A full disk loses the line, not the process."""
        self.last.append(text)
        self._append(text)

    def note(self, text: str) -> None:
        """Append a line of the supervisor's own, with the time."""
        self._append(f"{datetime.now().astimezone().isoformat(sep=' ', timespec='milliseconds')} NOTE {text}")

    def forget(self) -> None:
        """Start a new life: the last lines are those of it alone."""
        self.last.clear()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, text: str) -> None:
        data = text.encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._open()
            if self._size and self._size + len(data) > self._max_bytes:
                self._rotate()
            self._size += os.write(self._fd, data)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        for n in range(self._keep, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{n}")
            newer = self.path.with_name(f"{self.path.name}.{n - 1}") if n > 1 else self.path
            if newer.exists():
                newer.replace(older)
        self._open()
