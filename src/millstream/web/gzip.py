"""Answers and event streams in gzip, for clients that take it: each event is sent at once, and known text costs a few bytes.

No answer holds a secret beside text that a stranger chooses, so compressing tells nobody anything (BREACH): the one-time link has
an answer of its own, which is too small to be compressed.
"""

from __future__ import annotations

import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST = 1_000  # bytes of a whole answer; a smaller one is not worth it
_TYPES = (b"text/", b"application/json", b"image/svg+xml")
_GZIP, _WINDOW, _MEMORY, _LEVEL = 16, 13, 6, 5  # a window of 8 KB and 32 KB of memory per client


class Gzip:
    """The ASGI middleware."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, compressed where the client takes it (ASGI)."""
        if scope["type"] == "http" and _takes(scope):
            send = Packed(send)
        await self._application(scope, receive, send)


class Packed:
    """Compresses one answer on its way."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._packer: zlib._Compress | None = None

    async def __call__(self, message: Message) -> None:
        """Pass one message of the answer on."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if _fits(start) and (more or len(body) >= LEAST):
                self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP + _WINDOW, _MEMORY)
                start = {**start, "headers": [*_without_length(start), (b"content-encoding", b"gzip")]}
            await self._send({**start, "headers": [*start["headers"], (b"vary", b"accept-encoding")]})
        if self._packer is not None:
            body = self._packer.compress(body) + self._packer.flush(zlib.Z_SYNC_FLUSH if more else zlib.Z_FINISH)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _takes(scope: Scope) -> bool:
    accepted = b",".join(value for name, value in scope["headers"] if name.lower() == b"accept-encoding").lower()
    choices = {part.partition(b";")[0].strip(): part.replace(b" ", b"") for part in accepted.split(b",")}
    return b"gzip" in choices and not choices[b"gzip"].endswith((b";q=0", b";q=0.0", b";q=0.00", b";q=0.000"))


def _fits(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start["headers"]}
    return (
        start["status"] == 200
        and b"content-encoding" not in headers
        and headers.get(b"content-type", b"").startswith(_TYPES)
    )


def _without_length(start: Message) -> list[tuple[bytes, bytes]]:
    return [
        (name, value) for name, value in start["headers"] if name.lower() not in (b"content-length", b"accept-ranges")
    ]
