"""Listens, accepts, keeps house: the life of a broker from its data folder to the last closed connection."""

import asyncio
import errno
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millstream.broker import limits
from millstream.broker.broker import Broker
from millstream.broker.connection import Connection
from millstream.broker.settings import Settings
from millstream.log import Log, LogError

logger = logging.getLogger(__name__)
# Objects made between two collections of the youngest: requests make many and keep almost none.
GC_THRESHOLDS = (20_000, 50, 100)
# How often the log is asked for housekeeping when there may be something to do at once (interval fsync).
HOUSEKEEPING_SECONDS = 1.0
# After an accept failed for want of descriptors, so long until the next try.
ACCEPT_PAUSE_SECONDS = 1.0


class CannotStart(Exception):
    """The broker cannot start; the text says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a loopback address; port 0 picks a free one. Raises CannotStart."""
    try:
        found = socket.getaddrinfo(host or "127.0.0.1", port, type=socket.SOCK_STREAM)
    except OSError as e:
        raise CannotStart(f"the address {host} cannot be found: {e.strerror}; use 127.0.0.1") from None
    family, kind, protocol, _, address = found[0]
    if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise CannotStart(
            f"refusing to listen on {host}: without TLS and authentication the broker serves this machine only; "
            "use --listen 127.0.0.1:PORT"
        )
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(limits.BACKLOG)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            text = f"port {port} of {host} is taken; choose another with --listen {host}:PORT (0 picks a free one)"
        elif e.errno == errno.EACCES:
            text = f"port {port} of {host} needs more rights; choose one above 1023"
        else:
            text = f"cannot listen on {host}:{port}: {e.strerror}"
        raise CannotStart(text) from None
    sock.setblocking(False)
    return sock


def open_log(folder: Path, settings: Settings) -> Log:
    """The log of a data folder. Raises CannotStart."""
    try:
        log = Log(folder, settings.log_defaults)
    except LogError as e:
        raise CannotStart(str(e)) from None
    except OSError as e:
        raise CannotStart(
            f"the data folder {folder} cannot be used: {e.strerror or e}; choose another with --data"
        ) from None
    for line in log.recovered:
        logger.warning("recovery: %s", line)
    return log


class Server:
    """A broker that listens on one socket."""

    def __init__(self, log: Log, settings: Settings, sock: socket.socket) -> None:
        self.log = log
        self.settings = settings
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        host, port = sock.getsockname()[:2]
        self.broker = Broker(log, settings, self._loop, host, port)
        self._house = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._keeping: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._full = False
        self._closed = asyncio.Event()

    @property
    def address(self) -> str:
        """HOST:PORT of the socket."""
        host, port = self.sock.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Load the coordinators, then accept connections."""
        self.broker.groups.load()
        self.broker.transactions.load()
        self._loop.add_reader(self.sock.fileno(), self._accept)
        self._keeping = self._loop.create_task(self._keep_house())
        self._sweep()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as e:
                logger.error("cannot accept connections: %s; trying again in %.0f s", e, ACCEPT_PAUSE_SECONDS)
                self._loop.remove_reader(self.sock.fileno())
                self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            if len(self.broker.connections) >= self.settings.integer("max.connections"):
                if not self._full:
                    logger.error("max.connections is reached: further clients are turned away")
                self._full = True
                sock.close()
                continue
            self._full = False
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.broker.connections.add(Connection(self.broker, sock, f"{address[0]}:{address[1]}"))

    def _accept_again(self) -> None:
        if not self._closed.is_set():
            self._loop.add_reader(self.sock.fileno(), self._accept)

    def _sweep(self) -> None:
        self.broker.sweep(self._loop.time())
        self._sweeper = self._loop.call_later(limits.SWEEP_SECONDS, self._sweep)

    async def _keep_house(self) -> None:
        """Retention, compaction and interval fsync, one step after the other on a thread of their own."""
        while True:
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            try:
                while await self._loop.run_in_executor(self._house, self.log.maintain, self.broker.now_ms()):
                    pass
            except LogError as e:
                logger.error("housekeeping: %s", e)
            except Exception:
                logger.exception("housekeeping failed; it goes on")

    async def close(self) -> None:
        """Stop serving and close the log."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._loop.remove_reader(self.sock.fileno())
        self.sock.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._keeping is not None:
            self._keeping.cancel()
        self.broker.close()
        await self._loop.run_in_executor(None, self._house.shutdown)
        self.log.close()


async def serve(folder: Path, host: str, port: int, settings: Settings, ready: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT; ``ready`` gets its address once it serves. Raises CannotStart."""
    sock = listen(host, port)
    try:
        log = open_log(folder, settings)
    except BaseException:
        sock.close()
        raise
    server = Server(log, settings, sock)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    ready(server.address)
    try:
        await stop.wait()
    finally:
        await server.close()
