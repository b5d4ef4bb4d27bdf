"""Serving an ASGI application on a loopback socket, in the calling thread, until told to stop."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from millstream.settings import MillstreamError
from millstream.web.connections import Connection

BACKLOG = 128
MAX_HEADER_BYTES = 16_384
GRACE_S = 2  # how long open requests may take to end at shutdown


def bind(listen: str) -> socket.socket:
    """Return a listening TCP socket on `listen`, "HOST:PORT" with a loopback host; port 0 takes a free one.

    Raises MillstreamError when the address is not loopback, not understood, or taken.
    """
    host, port = parse(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only then: without it, answers wait 40 ms for an acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise MillstreamError(
                f"port {port} on {host} is taken by another program. Stop that program, or choose another port"
                f" (0 takes a free one)."
            ) from error
        raise MillstreamError(f"cannot listen on {listen}: {os.strerror(error.errno or 0)}.") from error
    bound.setblocking(False)
    return bound


def parse(listen: str) -> tuple[str, int]:
    """Return host (an address) and port of "HOST:PORT"; raises MillstreamError for what is no loopback address."""
    name, _, digits = listen.rpartition(":")
    name = name.removeprefix("[").removesuffix("]")
    if not name or not (digits.isascii() and digits.isdigit()) or int(digits) > 65_535:
        raise MillstreamError(f"expected HOST:PORT to listen on, for example 127.0.0.1:8080, got {listen!r}.")
    try:
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError as error:
        raise MillstreamError(
            f"expected an IP address or localhost to listen on, got {name!r} in {listen!r}."
        ) from error
    if not address.is_loopback:
        raise MillstreamError(
            f"refusing to listen on {listen!r}: the pages are not encrypted, so only this machine may reach them."
            " Listen on 127.0.0.1 and use a tunnel (ssh -L) or a proxy with TLS, named in console_origins of millstream.toml."
        )
    return str(address), int(digits)


def port_of(bound: socket.socket) -> int:
    """Return the port of a bound socket."""
    port: int = bound.getsockname()[1]
    return port


def url_of(bound: socket.socket) -> str:
    """Return the address for a browser, without a slash at its end."""
    host = bound.getsockname()[0]
    return f"http://{f'[{host}]' if ':' in host else host}:{port_of(bound)}"


def serve(
    application: ASGIApp,
    bound: socket.socket,
    stop: threading.Event,
    *,
    started: Callable[[], None] = lambda: None,
    closing: Callable[[], None] = lambda: None,
) -> None:
    """Serve `application` on `bound` until `stop` is set. Signals are the caller's business.

    started: called on the event loop once requests are answered. closing: called there before open requests are
    waited for: it ends the streams that would not end by themselves.
    """
    config = uvicorn.Config(
        application,
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    # uvicorn tells of every start and stop; only what goes wrong is for our log.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        _Server(config, stop, started, closing).run(sockets=[bound])
    finally:
        bound.close()


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, stop: threading.Event, started: Callable[[], None], closing: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._stop = stop
        self._tell_started = started
        self._closing = closing

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._tell_started()

    async def on_tick(self, counter: int) -> bool:
        return self._stop.is_set() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        await super().shutdown(sockets=sockets)
