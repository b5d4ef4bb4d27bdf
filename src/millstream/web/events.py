"""Server-sent events: the newest state of named parts, pushed to any number of clients, none of which can make us buffer.

What is published is state, not history: a part that changes again before a client took it replaces what waited there. So
a client's queue is bounded by the number of parts, and a client that was slow continues with the newest state of each.
Events that must not be skipped belong in a topic.

Each message has an id; a client that comes back with `Last-Event-ID` gets only what has changed since. Ids begin with a random
part per process: after a restart everything is sent again.

Standard: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

from starlette.types import Receive, Scope, Send

MAX_CLIENTS = 100  # open streams; a further page gets what there is, at once, and asks again after POLL_MS
MAX_PARTS = 1_000  # names that `publish` accepts: the bound of a client's queue
HEARTBEAT_S = 15.0  # below the idle timeouts of proxies and of browsers that sleep
SEND_TIMEOUT_S = 30.0  # a client that takes nothing for so long is let go; it comes back with its Last-Event-ID
RETRY_MS = 1_000  # how soon a client comes back
POLL_MS = 5_000  # how soon one comes back that got no stream of its own

_HEARTBEAT = b":\n\n"


def frame(data: str, *, event: str | None = None, id: str | None = None, retry_ms: int | None = None) -> bytes:
    """Return one message in the wire format. Line ends of any kind in `data` arrive as "\\n"."""
    lines = [f"retry: {retry_ms}"] if retry_ms is not None else []
    lines += [f"id: {_one_line(id)}"] if id is not None else []
    lines += [f"event: {_one_line(event)}"] if event is not None else []
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


class Hub:
    """Holds the newest message of each part and wakes the clients. Used on one event loop."""

    def __init__(self, *, max_clients: int = MAX_CLIENTS) -> None:
        self._epoch = secrets.token_hex(4)
        self._version = 0
        self._parts: dict[str, tuple[int, str]] = {}
        self._clients: set[Client] = set()
        self._max_clients = max_clients
        self._closed = False

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def publish(self, part: str, data: str) -> bool:
        """Make `data` the state of `part`; returns whether it differs from what was there. Raises ValueError beyond MAX_PARTS."""
        known = self._parts.get(part)
        if known and known[1] == data:
            return False
        if not known and len(self._parts) >= MAX_PARTS:
            raise ValueError(f"expected at most {MAX_PARTS} parts, got one more: {part!r}.")
        self._version += 1
        self._parts[part] = (self._version, data)
        for client in self._clients:
            client.wake(part)
        return True

    def connect(self, last_event_id: str | None = None) -> Client | None:
        """Return a client that first gets what has changed since `last_event_id`; None at the end.

        When there are too many, the client gets that and no more: its page asks again.
        """
        if self._closed:
            return None
        seen = self._seen(last_event_id)
        full = len(self._clients) >= self._max_clients
        client = Client(self, {part for part, (version, _) in self._parts.items() if version > seen}, once=full)
        if not full:
            self._clients.add(client)
        return client

    def close(self) -> None:
        """End the streams of all clients; later ones are refused."""
        self._closed = True
        for client in tuple(self._clients):
            client.close()

    def _seen(self, last_event_id: str | None) -> int:
        epoch, _, version = (last_event_id or "").partition("-")
        return int(version) if epoch == self._epoch and version.isascii() and version.isdigit() else 0

    def _frames(self, parts: set[str]) -> list[bytes]:
        # In the order of their versions: then the last id that a client has seen says which parts it has.
        newest = sorted(self._parts[part] for part in parts)
        return [frame(data, id=f"{self._epoch}-{version}") for version, data in newest]

    def _leave(self, client: Client) -> None:
        self._clients.discard(client)


class Client:
    """One connected page: the names of the parts that it has yet to get. once: it gets them, and the stream ends."""

    def __init__(self, hub: Hub, pending: set[str], *, once: bool = False) -> None:
        self._hub = hub
        self.once = once
        self._pending = pending
        self._wake = asyncio.Event()
        self.closed = False
        if pending:
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many parts wait for the client."""
        return len(self._pending)

    def wake(self, part: str) -> None:
        """Note that `part` has changed."""
        self._pending.add(part)
        self._wake.set()

    async def take(self) -> list[bytes]:
        """Wait for changes and return their frames, none when nothing changed for HEARTBEAT_S."""
        if not self.once:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wake.wait()
        self._wake.clear()
        parts, self._pending = self._pending, set()
        return self._hub._frames(parts)

    def close(self) -> None:
        """End the stream."""
        self.closed = True
        self._wake.set()
        self._hub._leave(self)


class EventStream:
    """The response to a page that listens: an ASGI application that writes the frames of one client until either side ends.

    on_leave: called when the client has gone.
    """

    def __init__(self, client: Client, *, on_leave: Callable[[], None] | None = None) -> None:
        self._client = client
        self._on_leave = on_leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the client leaves, is too slow, or the hub closes (ASGI)."""
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client.close()
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            if self._on_leave:
                self._on_leave()

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        chunk = f"retry: {RETRY_MS}\n\n".encode()
        if self._client.once:
            # The client takes the delay from a message with data only, so it stands in the first one.
            chunk = f"retry: {POLL_MS}\n".encode() + (b"".join(await self._client.take()) or b"\n")
            self._client.close()
            await send({"type": "http.response.body", "body": chunk, "more_body": False})
            return
        while not self._client.closed:
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except TimeoutError:
                return
            chunk = b"".join(await self._client.take()) or _HEARTBEAT
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def last_event_id(headers: Mapping[str, str]) -> str | None:
    """Return the id with which a client resumes, bounded in length: it comes from outside."""
    value = headers.get("last-event-id")
    return value[:64] if value else None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ").replace("\0", " ")
