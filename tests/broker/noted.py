"""A broker in the test's own process whose writes and syncs are noted in order, can be held up, and can fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.inside import Inside

Event = tuple[str, str]  # "write" or "sync", partition ("t-0")


def place(fd: int) -> str:
    """The partition that a file of the log belongs to, or nothing."""
    path = Path(os.readlink(f"/proc/self/fd/{fd}"))
    return f"{path.parent.parent.name}-{path.parent.name}" if path.suffix == ".log" else ""


class Noted(Inside):
    """The real broker on a thread; `events` is what has reached the operating system and the disk."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **settings: str) -> None:
        super().__init__(folder, **settings)
        self.events: list[Event] = []
        self._held: dict[str, threading.Event] = {}
        self._failing: dict[Event, int] = {}
        write, sync = os.pwrite, os.fdatasync

        def pwrite(fd: int, data: bytes, position: int) -> int:
            self._reached("write", place(fd))
            return write(fd, data, position)

        def fdatasync(fd: int) -> None:
            where = place(fd)
            if where in self._held:
                assert self._held[where].wait(20), f"the sync of {where} was never let go"
            self._reached("sync", where)
            sync(fd)

        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "fdatasync", fdatasync)

    def _reached(self, what: str, where: str) -> None:
        number = self._failing.get((what, where))
        if number is not None:
            raise OSError(number, os.strerror(number))
        if where:
            self.events.append((what, where))

    def fail(self, what: str, where: str, number: int = errno.EIO) -> None:
        """Have writes or syncs of a partition fail."""
        self._failing[what, where] = number

    def mend(self) -> None:
        """Have everything work again."""
        self._failing.clear()

    def hold(self, where: str) -> Callable[[], None]:
        """Hold up the syncs of a partition until what is returned is called."""
        gate = self._held[where] = threading.Event()

        def let_go() -> None:
            del self._held[where]
            gate.set()

        return let_go

    def told(self) -> list[Event]:
        """What has happened since this was asked last, repetitions left out."""
        events, self.events = self.events, []
        return [event for i, event in enumerate(events) if i == 0 or events[i - 1] != event]

    def until_noted(self, event: Event) -> None:
        """Wait until something has happened."""
        self.until(lambda: event in self.events)

    def __exit__(self, *_: object) -> None:
        self.mend()
        for gate in list(self._held.values()):
            gate.set()
        self.end()
