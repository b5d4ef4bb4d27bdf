"""fsync for topics of durability `commit`, off the event loop: many producers share one (group commit)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from millstream.log import Partition

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Flusher:
    """Runs one round of fsyncs at a time; what is appended meanwhile waits for the next round."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._pending: dict[Partition, None] = {}
        self._waiting: list[Callable[[dict[Partition, str]], None]] = []
        self._running = False

    def after(
        self, partitions: Sequence[Partition], response: T, failed: Callable[[T, dict[Partition, str]], T]
    ) -> asyncio.Future[T]:
        """A future of `response`, done when an fsync that began later than this call has ended.

        When it failed, the response goes through `failed` with the errors by partition.
        """
        future: asyncio.Future[T] = self._loop.create_future()

        def done(errors: dict[Partition, str]) -> None:
            if not future.done():
                mine = {p: errors[p] for p in partitions if p in errors}
                future.set_result(failed(response, mine) if mine else response)

        self._pending.update(dict.fromkeys(partitions))
        self._waiting.append(done)
        self._start()
        return future

    def answer(
        self, partitions: Sequence[Partition], response: T, failed: Callable[[T, dict[Partition, str]], T]
    ) -> T | asyncio.Future[T]:
        """Like `after`, but the response itself when there is nothing to sync."""
        return self.after(partitions, response, failed) if partitions else response

    def synced(self, partitions: Sequence[Partition]) -> asyncio.Future[dict[Partition, str]]:
        """Like `after`; the future holds the errors by partition, none when everything is on disk."""
        none: dict[Partition, str] = {}
        return self.after(partitions, none, lambda _, failed: failed)

    def soon(self, partition: Partition) -> None:
        """Have what was appended to a partition synced, and those who wait for it woken, without waiting for that."""
        self._pending[partition] = None
        self._start()

    def _start(self) -> None:
        if not self._running:
            self._running = True
            self._loop.call_soon(self._round)  # requests that are already here join this round

    def _round(self) -> None:
        pending, self._pending = self._pending, {}
        waiting, self._waiting = self._waiting, []

        def work() -> dict[Partition, str]:
            failed = {}
            for partition in pending:
                try:
                    partition.flush()
                except Exception as e:
                    _log.error("fsync of %s-%d failed: %s", partition.topic.name, partition.index, e)
                    failed[partition] = str(e)
            return failed

        def ended(result: asyncio.Future[dict[Partition, str]]) -> None:
            if result.cancelled():
                return
            errors = result.result()
            for done in waiting:
                done(errors)
            for partition in pending:  # records become readable by the sync; after a failed one readers see no more
                if partition.listeners:
                    partition.announce()
            if self._pending:
                self._round()
            else:
                self._running = False

        self._loop.run_in_executor(self._pool, work).add_done_callback(ended)

    def close(self) -> None:
        """Wait for the round that runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
