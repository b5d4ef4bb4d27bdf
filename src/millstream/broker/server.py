"""Listens, accepts, keeps house: the life of a broker from its data folder to the last closed connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millstream.broker import limits
from millstream.broker.broker import Broker
from millstream.broker.dynamic import Dynamic
from millstream.broker.network.arrivals import Arrivals
from millstream.broker.network.connection import Connection
from millstream.broker.network.tls_connection import TlsConnection
from millstream.broker.security import users
from millstream.broker.security.certificates import LOOK_SECONDS, Certificates
from millstream.broker.security.listeners import CannotStart, Listener, open_listeners
from millstream.broker.security.store import AccessStore, StoreError
from millstream.broker.settings import Settings, SettingsError
from millstream.log import Log, LogError
from millstream.settings import MillstreamError

_log = logging.getLogger(__name__)
# Objects made between two collections of the youngest: requests make many and keep almost none.
GC_THRESHOLDS = (20_000, 50, 100)
# A worker thread that computes (compaction) keeps the interpreter for so long from the event loop, at each system call
# of a request again. Python's default is 5 ms, which made requests take tens of milliseconds while a topic was compacted.
SWITCH_SECONDS = 0.0001
# Bounds on log.cleaner.backoff.ms, how often the log is asked for housekeeping (interval fsync is due every second).
HOUSEKEEPING_SECONDS = 1.0
LEAST_HOUSEKEEPING_SECONDS = 0.05
# After an accept failed for want of descriptors, so long until the next try.
ACCEPT_PAUSE_SECONDS = 1.0


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
        _log.warning("recovery: %s", line)
    return log


def open_dynamic(folder: Path, settings: Settings) -> Dynamic:
    """What administrators changed of the settings, in effect in `settings`. Raises CannotStart."""
    try:
        return Dynamic(folder, settings)
    except SettingsError as e:
        raise CannotStart(str(e)) from None


def open_access(folder: Path, add_scram: Sequence[str]) -> AccessStore:
    """Users, access control lists and quotas of a data folder, with the users to add. Raises CannotStart."""
    try:
        access = AccessStore(folder)
        for text in add_scram:
            _log.info("user %s has new SCRAM keys", users.add(access, text))
        if add_scram:
            access.save()
    except (StoreError, MillstreamError) as e:
        raise CannotStart(str(e)) from None
    return access


class Server:
    """A broker that listens on its sockets."""

    def __init__(
        self,
        log: Log,
        access: AccessStore,
        dynamic: Dynamic,
        listeners: list[Listener],
        certificates: Certificates,
    ) -> None:
        self.log = log
        self.settings = dynamic.settings
        self.listeners = listeners
        self._loop = asyncio.get_running_loop()
        self.broker = Broker(log, access, dynamic, self._loop, listeners)
        self._house = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._keeping: asyncio.Task[None] | None = None
        self._certificates = certificates
        self._watching: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._arrivals = Arrivals(self.broker)
        self._closed = asyncio.Event()

    def start(self) -> None:
        """Load the coordinators, then accept connections."""
        self.broker.groups.load()
        self.broker.transactions.load()
        for listener in self.listeners:
            self._loop.add_reader(listener.sock.fileno(), self._accept, listener)
        self._keeping = self._loop.create_task(self._repeat(self._house, self.log.maintain))
        self.broker.archives.start()
        if any(listener.context is not None for listener in self.listeners):
            self._watching = self._loop.create_task(self._watch_certificates())
        self._sweep()

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._loop.run_in_executor(None, self._certificates.look, self.listeners)
            except Exception:
                _log.exception("looking for new certificates failed; it continues")

    def _accept(self, listener: Listener) -> None:
        while True:
            try:
                sock, address = listener.sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as e:
                _log.error("cannot accept connections: %s; trying again in %.0f s", e, ACCEPT_PAUSE_SECONDS)
                self._accept_later(listener, ACCEPT_PAUSE_SECONDS)
                return
            if not self._arrivals.welcome(sock, address[0]):
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind = Connection if listener.context is None else TlsConnection
                self.broker.connections.add(kind(self.broker, sock, f"{address[0]}:{address[1]}", listener))
            except OSError as e:  # it has hung up already
                _log.debug("a connection from %s ended before it began: %s", address[0], e)
                sock.close()
                continue
            pause = self._arrivals.pause()
            if pause:
                self._accept_later(listener, pause)
                return

    def _accept_later(self, listener: Listener, seconds: float) -> None:
        self._loop.remove_reader(listener.sock.fileno())
        self._loop.call_later(seconds, self._accept_again, listener)

    def _accept_again(self, listener: Listener) -> None:
        if not self._closed.is_set():
            self._loop.add_reader(listener.sock.fileno(), self._accept, listener)

    def _sweep(self) -> None:
        self.broker.sweep(self._loop.time())
        self._sweeper = self._loop.call_later(limits.SWEEP_SECONDS, self._sweep)

    async def _repeat(self, thread: ThreadPoolExecutor, work: Callable[[int], bool]) -> None:
        """Retention, compaction and interval fsync: one step after the other on a thread of their own."""
        wanted = self.settings.seconds("log.cleaner.backoff.ms")
        pause = min(max(wanted, LEAST_HOUSEKEEPING_SECONDS), HOUSEKEEPING_SECONDS)
        while True:
            await asyncio.sleep(pause)
            try:
                while await self._loop.run_in_executor(thread, work, self.broker.now_ms()):
                    pass
            except LogError as e:
                _log.error("housekeeping: %s", e)
            except Exception:
                _log.exception("housekeeping failed; it continues")

    async def close(self) -> None:
        """Stop serving and close the log."""
        if self._closed.is_set():
            return
        self._closed.set()
        for listener in self.listeners:
            self._loop.remove_reader(listener.sock.fileno())
            listener.sock.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._keeping is not None:
            self._keeping.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._arrivals.close()
        self.broker.close()
        await self._loop.run_in_executor(None, self._house.shutdown)
        await self._loop.run_in_executor(None, self.broker.archives.join)
        self.log.close()


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it: one per connection and partition, and more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as e:  # some systems have a lower limit of their own
            _log.info("the limit of open files stays at %d: %s", soft, e)


async def serve(
    folder: Path,
    listen: str,
    settings: Settings,
    ready: Callable[[list[Listener]], None],
    add_scram: Sequence[str] = (),
) -> None:
    """Run a broker until SIGTERM or SIGINT; `ready` gets its listeners once it serves. Raises CannotStart."""
    raise_file_limit()
    certificates = Certificates(settings)
    listeners = open_listeners(listen, settings)
    try:
        dynamic = open_dynamic(folder, settings)
        log = open_log(folder, settings)
        try:
            access = open_access(folder, add_scram)
        except BaseException:
            log.close()
            raise
    except BaseException:
        for listener in listeners:
            listener.sock.close()
        raise
    server = Server(log, access, dynamic, listeners, certificates)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server.start()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    ready(listeners)
    try:
        await stop.wait()
    finally:
        await server.close()
