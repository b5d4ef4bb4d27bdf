"""Fetching archived segments beside the event loop: asked for by reads that met one, shared by all that wait for it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from millstream.log import LogError, NotHere

if TYPE_CHECKING:
    from millstream.log import Partition
    from millstream.log.segment import Segment

logger = logging.getLogger(__name__)
# Segments fetched at the same time.
WORKERS = 2
# After a failed fetch readers are told so for this long, before it is tried again.
FAILED_SECONDS = 1.0


class Archives:
    """Fetches under way, and those that failed a moment ago."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="archive")
        self._waiting: dict[Segment, list[Callable[[], None]]] = {}
        self._failed: dict[Segment, float] = {}

    def fetch(self, partition: "Partition", missing: NotHere, then: Callable[[], None]) -> bool:
        """Fetch what a read misses, and call ``then`` on the loop when that has ended, well or not.

        False when it failed a moment ago: the read should be answered with an error.
        """
        segment = missing.segment
        failed = self._failed.get(segment)
        if failed is not None:
            if self._loop.time() - failed < FAILED_SECONDS:
                return False
            del self._failed[segment]
        waiting = self._waiting.get(segment)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[segment] = [then]

        def ended(result: "asyncio.Future[None]") -> None:
            waiting = self._waiting.pop(segment)
            if result.cancelled():
                return
            error = result.exception()
            if error is not None:
                if isinstance(error, LogError):
                    logger.error("%s", error)
                else:
                    logger.error("fetching an archived segment failed", exc_info=error)
                self._failed = {s: t for s, t in self._failed.items() if self._loop.time() - t < FAILED_SECONDS}
                self._failed[segment] = self._loop.time()
            for call in waiting:
                call()

        self._loop.run_in_executor(self._pool, partition.fetch, segment).add_done_callback(ended)
        return True

    def close(self) -> None:
        """Wait for the fetches that run."""
        self._pool.shutdown(wait=True, cancel_futures=True)
