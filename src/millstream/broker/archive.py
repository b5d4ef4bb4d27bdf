"""Archives beside the event loop: fetching what reads have met there, and copying closed segments to them.

Every archive has threads of its own, a few for fetching and one for copying: a store that is slow, or that never answers,
holds nobody up who does not need it. Its threads are not waited for when the broker ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.log import LogError, NotHere
from millstream.log.archive import root

if TYPE_CHECKING:
    from millstream.log import Log, Partition
    from millstream.log.fetched import Extent

_log = logging.getLogger(__name__)
# Extents fetched from one archive at the same time: each takes a thread, and some megabytes of memory.
WORKERS = 4
# A fetch that takes longer has failed for those who wait; its thread stays busy until the store answers.
FETCH_SECONDS = 20.0
# After a failed fetch readers are told so for this long, before it is tried again.
FAILED_SECONDS = 1.0
# How often is looked for segments to be copied.
COPY_SECONDS = 1.0
# How long the end of the broker waits for copies and fetches under way; unfinished ones are made again.
CLOSE_SECONDS = 5.0


class Fetch:
    """One extent on its way, and those who wait for it."""

    def __init__(self, partition: Partition, missing: NotHere, then: Callable[[], None]) -> None:
        self.partition = partition
        self.missing = missing
        self.waiting = [then]
        self.timer: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        """Have those who wait look again, now or never more."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class Store:
    """One archive: what waits to be fetched from it, and how many fetches and copies are under way."""

    def __init__(self) -> None:
        self.queue: deque[Fetch] = deque()
        self.fetching = 0
        self.copying = False


class Archives:
    """Fetches and copies under way, and fetches that failed a moment ago. Used on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Log) -> None:
        self._loop = loop
        self._log = log
        self._stores: dict[str, Store] = {}
        self._fetches: dict[Extent, Fetch] = {}
        self._failed: dict[Extent, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._threads: set[threading.Thread] = set()

    def start(self) -> None:
        """Begin to copy closed segments of topics with an archive."""
        for name in self._log.archives():
            store = self._stores.setdefault(name, Store())
            if not store.copying:
                store.copying = True
                self._run(self._copy, name, store)
        self._timer = self._loop.call_later(COPY_SECONDS, self.start)

    def fetch(self, partition: Partition, missing: NotHere, then: Callable[[], None]) -> bool:
        """Fetch what a read misses, and call `then` on the loop when that has ended, well or not.

        False when it failed a moment ago: the read should be answered with an error.
        """
        extent = missing.extent
        failed = self._failed.get(extent)
        if failed is not None:
            if self._loop.time() - failed < FAILED_SECONDS:
                return False
            del self._failed[extent]
        found = self._fetches.get(extent)
        if found is not None:
            found.waiting.append(then)
            return True
        found = self._fetches[extent] = Fetch(partition, missing, then)
        found.timer = self._loop.call_later(FETCH_SECONDS, self._late, found)
        store = self._store(extent)
        store.queue.append(found)
        self._next(store)
        return True

    def fetch_ahead(self, partition: Partition, missing: NotHere) -> None:
        """Fetch what a reader will miss next, if there are threads enough for those who wait already."""
        extent = missing.extent
        if extent not in self._fetches and self._store(extent).fetching < WORKERS // 2:
            self.fetch(partition, missing, lambda: None)

    def _store(self, extent: Extent) -> Store:
        entry = extent.segment.remote
        return self._stores.setdefault(root(entry.url) if entry is not None else "", Store())

    def _next(self, store: Store) -> None:
        while store.queue and store.fetching < WORKERS and not self._closing:
            store.fetching += 1
            self._run(self._work, store, store.queue.popleft())

    def _run(self, work: Callable[..., None], *given: object) -> None:
        def run() -> None:
            try:
                work(*given)
            finally:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, name="archive", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self, store: Store, fetch: Fetch) -> None:
        error: Exception | None = None
        try:
            fetch.partition.fetch(fetch.missing)
        except Exception as e:
            error = e
        self._tell(self._ended, store, fetch, error)

    def _tell(self, call: Callable[..., None], *given: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended before the store has answered.
            self._loop.call_soon_threadsafe(call, *given)

    def _ended(self, store: Store, fetch: Fetch, error: Exception | None) -> None:
        store.fetching -= 1
        if fetch.timer is not None:
            fetch.timer.cancel()
        if self._fetches.get(fetch.missing.extent) is fetch:
            del self._fetches[fetch.missing.extent]
            if isinstance(error, LogError):
                self._failure(fetch, str(error))
            elif error is not None:
                _log.error("fetching from an archive failed", exc_info=error)
                self._failure(fetch, f"{fetch.partition.name}: {error}")
        elif error is None:
            self._failed.pop(fetch.missing.extent, None)  # Late, but here.
        fetch.tell()
        self._next(store)

    def _late(self, fetch: Fetch) -> None:
        del self._fetches[fetch.missing.extent]
        for store in self._stores.values():
            with contextlib.suppress(ValueError):
                store.queue.remove(fetch)
        self._failure(fetch, f"{fetch.missing}: the archive has not answered for {FETCH_SECONDS:.0f} s")
        fetch.tell()

    def _failure(self, fetch: Fetch, message: str) -> None:
        _log.error("%s", message)
        now = self._loop.time()
        self._failed = {s: t for s, t in self._failed.items() if now - t < FAILED_SECONDS}
        self._failed[fetch.missing.extent] = now

    def _copy(self, name: str, store: Store) -> None:
        try:
            while not self._closing and self._log.archive(int(time.time() * 1000), name):
                pass
        except Exception:
            _log.exception("archiving failed; it continues")
        self._tell(self._copied, store)

    def _copied(self, store: Store) -> None:
        store.copying = False

    def close(self) -> None:
        """Begin nothing more."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for fetch in self._fetches.values():
            if fetch.timer is not None:
                fetch.timer.cancel()

    def join(self) -> None:
        """Wait for what is under way, for a while. Blocks."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
