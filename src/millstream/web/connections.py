"""Connections with bounds: a time for a request's head, a time for taking the answer, and a number in all.

Everybody on this machine has the same address, so there is no bound per peer: when there are too many, the connection goes that
has had no request under way for the longest time. A request that is sent whole is answered within milliseconds and is never that
one, so connections that are opened and left half-sent harm only each other.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256  # beyond it the one that has been idle for longest is closed
HEAD_S = 10.0  # for a request's head, from its first byte or from the connection's start
TAKE_S = 30.0  # for a client that takes nothing of its answer

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 5\r\nconnection: close\r\n"
    b"content-length: 46\r\n\r\ntoo many requests are under way; try again.  \n"
)


class Connection(H11Protocol):
    """One connection, served by uvicorn over h11."""

    idle_since = 0.0
    _head: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Take the connection, and close another one when there are too many."""
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        self._await_head()
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [c for c in self.connections if isinstance(c, Connection) and c is not self and not c.busy]
            if idle:
                min(idle, key=lambda c: c.idle_since).drop()
            else:
                transport.write(_FULL)
                self.drop(gently=True)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a head that is not complete have HEAD_S from the first one."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.busy:
            self._cancel_head()
        elif self._head is None:
            self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next request; what has come of it already counts as its first bytes."""
        self.idle_since = time.monotonic()
        super().on_response_complete()
        if not self.busy and self.conn.trailing_data[0] and self._head is None:
            self._await_head()

    def pause_writing(self) -> None:
        """The client takes nothing at the moment."""
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(TAKE_S, self.drop)

    def resume_writing(self) -> None:
        """The client takes its answer again."""
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_head()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        super().connection_lost(exc)

    def drop(self, *, gently: bool = False) -> None:
        """Close the connection now; gently: after what was written."""
        self.connections.discard(self)
        if gently:
            self.transport.close()
        else:
            self.transport.abort()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self._too_slow)

    def _cancel_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_slow(self) -> None:
        self._head = None
        if not self.busy:
            self.drop()
