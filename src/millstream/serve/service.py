"""The console as a process: endpoints, the event stream, and the loop that renders what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millstream.monitor.watch import Watcher
from millstream.serve.console import Console
from millstream.serve.metrics import CONTENT_TYPE, metrics
from millstream.serve.pages import ASSETS, FONT, ICON, SCRIPTS, STYLES, Pages, message, version_of_assets
from millstream.settings import Kafka, MillstreamError
from millstream.web.access import Access
from millstream.web.events import EventStream, Hub, last_event_id
from millstream.web.guard import Guard
from millstream.web.gzip import Gzip
from millstream.web.origin import allowed_origins, origin_of
from millstream.web.server import bind, port_of, serve, url_of

EVERY_S = 1.0  # between renderings of the page while somebody looks
NEWS_S = 0.25  # the soonest after which an alert causes another rendering
CLOSE_S = 1.0  # how long the watcher of the groups may take to end when the log is silent
FRESH_S = 1.0  # how long a request waits for a reading, when nobody looked before it

_TYPES = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"

_log = logging.getLogger(__name__)


def run(
    description: Mapping[str, Any],
    kafka: Kafka,
    conninfo: str,
    *,
    listen: str = "127.0.0.1:0",
    ready: Callable[[dict[str, object]], None],
    stop: threading.Event,
    token: str | None = None,
    sessions: Path | None = None,
    origins: Sequence[str] = (),
    groups: Sequence[str] | None = None,
) -> None:
    """Serve the console of an application until `stop` is set.

    description: `App.describe()`. conninfo: of the store of views. listen: "HOST:PORT", loopback only; port 0 takes a free one.
    ready: called with {"console": address} once the page can be opened; the address bears a token that works once.
    token: with which programs may read /metrics; None: only signed-in browsers.
    sessions: the file that keeps links and sessions over restarts; None: in memory.
    groups: the consumer groups to look at and to warn of; None for every group of the log.
    origins: where a tunnel or proxy shows the page, beside the address itself.
    Neither the log nor the database need to be there: the page says so, and shows them when they come.
    Raises MillstreamError when the address is not loopback or taken.
    """
    bound = bind(listen)
    try:
        allowed = allowed_origins(port_of(bound), origins)
    except MillstreamError:
        bound.close()
        raise
    access = Access(port_of(bound), sessions)
    url = url_of(bound)
    service = Service(description, kafka, conninfo, access, allowed, stop, groups)
    application = service.application({"/metrics": token} if token else {})
    serve(
        application,
        bound,
        stop,
        started=lambda: ready({"console": f"{url}/?token={access.new_token()}"}),
        closing=service.hub.close,
    )


class Service:
    """The endpoints over one console."""

    def __init__(
        self,
        description: Mapping[str, Any],
        kafka: Kafka,
        conninfo: str,
        access: Access,
        origins: frozenset[str],
        stop: threading.Event,
        groups: Sequence[str] | None = None,
    ) -> None:
        self.hub = Hub()
        self.console = Console(description, kafka, conninfo, stop, self._on_news, groups)
        # Here, since this process runs as long as the application does and has a connection to the log anyway.
        self.watcher = Watcher(kafka, groups)
        self.pages = Pages(description)
        self._access = access
        self._origins = origins
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._assets = {
            f"{version_of_assets()}/{name}": ASSETS / name for name in (*SCRIPTS, *STYLES, FONT, ICON)
        }  # fmt: skip

    def application(self, tokens: Mapping[str, str]) -> ASGIApp:
        """Return the guarded ASGI application. tokens: by path, what opens it to programs."""
        starlette = Starlette(
            routes=[
                Route("/", self._page),
                Route("/events", self._events),
                Route("/api/state", self._state),
                Route("/link", self._link, methods=["POST"]),
                Route("/metrics", self._metrics),
                Route("/healthz", self._health),
                Route("/assets/{path:path}", self._asset),
                Route("/favicon.ico", lambda _: Response(status_code=204)),
            ],
            lifespan=self._lifespan,
        )
        guard = Guard(
            starlette,
            access=self._access,
            origins=self._origins,
            tokens=tokens,
            public=("/healthz", "/assets/", "/favicon.ico"),
            refused=lambda reason: HTMLResponse(self.pages.refused(reason), 403),
        )
        return Gzip(guard)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.console.start()
        self.watcher.start()
        rendering = asyncio.create_task(self._render())
        try:
            yield
        finally:
            self._loop = None
            rendering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await rendering
            self._stop.set()
            await asyncio.to_thread(self.console.close)
            await asyncio.to_thread(self.watcher.close, CLOSE_S)

    async def _render(self) -> None:
        """Publish what has changed, each second and soon after an alert, as long as somebody looks."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._news.wait()
            self._news.clear()
            if self.hub.clients:
                try:
                    self._publish(self.pages.parts(self.console.state()))
                except Exception:  # a value that a template did not expect must not end the page's life
                    _log.exception("the page cannot be rendered")
            await asyncio.sleep(NEWS_S)

    def _publish(self, parts: Mapping[str, str]) -> None:
        for part, html in parts.items():
            self.hub.publish(part, message(part, html))

    def _on_news(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._news.set)

    async def _fresh(self) -> None:
        """Let the readers read, if they were resting, before a request is answered."""
        if self.hub.clients:
            return
        moment = time.time()
        self.console.activity.touch()
        deadline = time.monotonic() + FRESH_S
        while time.monotonic() < deadline and not self.console.fresh_since(moment - 1.5):  # noqa: ASYNC110
            await asyncio.sleep(0.03)  # the readers are threads, they set no asyncio.Event

    async def _page(self, _: Request) -> Response:
        await self._fresh()
        return HTMLResponse(self.pages.page(self.console.state()))

    async def _events(self, request: Request) -> Response | EventStream:
        client = self.hub.connect(last_event_id(request.headers))
        if client is None:
            return PlainTextResponse("the console is ending\n", 503, headers={"retry-after": "1"})
        self.console.activity.watch(+1)
        self._news.set()
        return EventStream(client, on_leave=lambda: self.console.activity.watch(-1))

    async def _state(self, _: Request) -> Response:
        await self._fresh()
        return Response(msgspec.json.encode(self.console.state()), media_type="application/json")

    async def _metrics(self, _: Request) -> Response:
        # Not read again: a program that scrapes every few seconds would keep the readers as busy as an open page does.
        return Response(
            metrics(self.watcher.snapshot, self.console.reading, self.console.captures), media_type=CONTENT_TYPE
        )

    async def _link(self, request: Request) -> Response:
        """Give a signed-in browser another one-time link, for another browser."""
        url = origin_of(request.headers, self._origins)
        return PlainTextResponse(f"{url}/?token={self._access.new_token()}")

    async def _health(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _asset(self, request: Request) -> Response:
        path = self._assets.get(request.path_params["path"])
        if path is None:
            return PlainTextResponse("there is no such asset\n", 404)
        return FileResponse(path, media_type=_TYPES[os.path.splitext(path)[1]], headers={"cache-control": _FOREVER})
