"""A broker for tests in the test's own process: its writes and syncs are noted in order, can be held up, and can fail."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from millstream.broker.security.listeners import open_listeners
from millstream.broker.server import Server, open_access, open_log
from millstream.broker.settings import Settings
from tests.broker.wire import Wire

T = TypeVar("T")
Event = tuple[str, str]  # "write" or "sync", partition ("t-0")


def place(fd: int) -> str:
    """The partition that a file of the log belongs to, or nothing."""
    path = Path(os.readlink(f"/proc/self/fd/{fd}"))
    return f"{path.parent.parent.name}-{path.parent.name}" if path.suffix == ".log" else ""


class Inside:
    """The real broker on a thread; `events` is what has reached the operating system and the disk."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *settings: str) -> None:
        self.folder, self.settings = folder, settings
        self.events: list[Event] = []
        self.address = ""
        self._held: dict[str, threading.Event] = {}
        self._failing: dict[Event, int] = {}
        write, sync = os.pwrite, os.fdatasync

        def pwrite(fd: int, data: bytes, position: int) -> int:
            return self._noted("write", place(fd), lambda: write(fd, data, position))

        def fdatasync(fd: int) -> None:
            where = place(fd)
            if where in self._held:
                assert self._held[where].wait(20), f"the sync of {where} was never let go"
            self._noted("sync", where, lambda: sync(fd))

        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "fdatasync", fdatasync)

    def _noted(self, what: str, where: str, do: Callable[[], T]) -> T:
        number = self._failing.get((what, where))
        if number is not None:
            raise OSError(number, os.strerror(number))
        done = do()
        if where:
            self.events.append((what, where))
        return done

    # ---- the disk

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

    def until(self, event: Event) -> None:
        """Wait until something has happened."""
        deadline = time.monotonic() + 10
        while event not in self.events:
            assert time.monotonic() < deadline, f"{event} is not among {self.events}"
            time.sleep(0.005)

    # ---- the broker

    def start(self) -> Inside:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(10)
        return self

    async def _serve(self, ready: threading.Event) -> None:
        settings = Settings.parse(self.settings)
        listeners = open_listeners("127.0.0.1:0", settings)
        server = Server(open_log(self.folder, settings), open_access(self.folder, ()), settings, listeners)
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server.start()
        self.server = server
        self.address = listeners[0].address
        ready.set()
        await self._stop.wait()
        await server.close()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def wire(self) -> Wire:
        """A client."""
        return Wire(self.address)

    def __enter__(self) -> Inside:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.mend()
        for gate in list(self._held.values()):
            gate.set()
        self.end()
