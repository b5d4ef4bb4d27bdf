"""What every part of the broker builds on: the log, the settings, the event loop, the time, and syncing to disk."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.dynamic import Dynamic
from millstream.broker.flusher import Flusher

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.log import Log

S = TypeVar("S")
M = TypeVar("M")


class Core:
    """One log, and the loop on which it is served. The coordinators know no more of the broker, and nothing of its clients."""

    def __init__(self, log: Log, dynamic: Dynamic, loop: asyncio.AbstractEventLoop) -> None:
        self.log = log
        self.dynamic = dynamic
        self.settings = dynamic.settings
        self.loop = loop
        self.flusher = Flusher(loop)
        log.on_unflushed(self.flusher.soon)
        self.topics_version = 0  # rises when a topic comes, goes or grows

    def now_ms(self) -> int:
        """The time of day in epoch milliseconds."""
        return int(time.time() * 1000)

    def answer(self, source: asyncio.Future[S], make: Callable[[S], M]) -> M | asyncio.Future[M]:
        """The response to a request whose outcome is, or will be, in a future."""
        if source.done():
            return make(source.result())
        response: asyncio.Future[M] = self.loop.create_future()

        def done(_: asyncio.Future[S]) -> None:
            if not response.done():
                if source.cancelled():
                    response.cancel()
                else:
                    response.set_result(make(source.result()))

        source.add_done_callback(done)
        return response
