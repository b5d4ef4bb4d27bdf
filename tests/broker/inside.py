"""A broker inside the test's own process, on a thread: so that its bounds can be made small, and what it holds be seen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from millstream.broker.broker import Broker
from millstream.broker.security.certificates import Certificates
from millstream.broker.security.listeners import open_listeners
from millstream.broker.server import Server, open_access, open_dynamic, open_log
from millstream.broker.settings import Settings
from tests.broker.wire import Wire


class Inside:
    """A running server, which may be ended and started again; ``server`` may be looked at, not changed."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", **settings: str) -> None:
        self.folder, self._listen, self._given = folder, listen, settings
        self.addresses: dict[str, str] = {}

    def start(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="broker")
        self._thread.start()
        assert ready.wait(20)
        return self

    async def _serve(self, ready: threading.Event) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings = Settings(self._given)
        certificates = Certificates(settings)
        listeners = open_listeners(self._listen, settings)
        dynamic = open_dynamic(self.folder, settings)
        access = open_access(self.folder, ())
        self.server = Server(open_log(self.folder, settings), access, dynamic, listeners, certificates)
        self.server.start()
        self.addresses = {listener.protocol: listener.address for listener in listeners}
        ready.set()
        await self._stop.wait()
        await self.server.close()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def address(self) -> str:
        return next(iter(self.addresses.values()))

    @property
    def broker(self) -> Broker:
        return self.server.broker

    def wire(self) -> Wire:
        """A client."""
        return Wire(self.address)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds:.0f} s"
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()
