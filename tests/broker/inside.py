"""A broker inside the test's own process, on a thread: so that its bounds can be made small, and what it holds be seen."""

import asyncio
import threading
import time
from pathlib import Path

from millstream.broker.security.certificates import Certificates
from millstream.broker.security.listeners import open_listeners
from millstream.broker.server import Server, open_access, open_log
from millstream.broker.settings import Settings


class Inside:
    """A running server; ``server`` may be looked at, not changed."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0", **settings: str) -> None:
        self._folder = folder
        self._listen = listen
        self._settings = Settings(settings)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="broker")
        self._ready = threading.Event()
        self.addresses: dict[str, str] = {}

    async def _serve(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        certificates = Certificates(self._settings)
        listeners = open_listeners(self._listen, self._settings)
        log = open_log(self._folder, self._settings)
        self.server = Server(log, open_access(self._folder, ()), self._settings, listeners, certificates)
        self.server.start()
        self.addresses = {listener.protocol: listener.address for listener in listeners}
        self._ready.set()
        await self._stop.wait()
        await self.server.close()

    @property
    def address(self) -> str:
        return next(iter(self.addresses.values()))

    @property
    def broker(self):
        return self.server.broker

    def until(self, condition, seconds: float = 20.0) -> None:
        """Wait until something is so."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds:.0f} s"
            time.sleep(0.01)

    def __enter__(self) -> "Inside":
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()
