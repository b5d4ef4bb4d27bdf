"""Half-sent, slow and many connections on a real socket: they harm only each other."""

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from millstream.web import connections
from millstream.web.events import EventStream, Hub
from millstream.web.server import bind, port_of, serve, url_of


@contextmanager
def served():
    """Serve a few routes; gives the address and the port."""
    hub = Hub()

    async def health(_):
        return PlainTextResponse("ok\n")

    async def large(_):
        return Response(bytes(50_000_000))

    async def stream(_):
        return EventStream(hub.connect())

    stop, started = threading.Event(), threading.Event()
    bound = bind("127.0.0.1:0")
    app = Starlette(routes=[Route("/healthz", health), Route("/large", large), Route("/events", stream)])
    thread = threading.Thread(
        target=serve, args=(app, bound, stop), kwargs={"started": started.set, "closing": hub.close}
    )
    thread.start()
    assert started.wait(10)
    try:
        yield url_of(bound), port_of(bound)
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def half(port, text=b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
    """A connection with half a request."""
    found = socket.create_connection(("127.0.0.1", port), 10)
    found.sendall(text)
    return found


def gone(found, wait=0.05):
    """Whether the server has closed a connection; if not, after so many seconds."""
    found.settimeout(wait)
    try:
        return found.recv(65536) == b""
    except (TimeoutError, BlockingIOError):
        return False
    except OSError:
        return True


def test_half_sent_requests_do_not_keep_others_out():
    with served() as (url, port), ExitStack() as stack:
        waiting = [stack.enter_context(half(port)) for _ in range(400)]
        for _ in range(5):
            assert httpx.get(f"{url}/healthz", timeout=5).text == "ok\n"
        assert sum(gone(one, 0) for one in waiting) >= 400 - connections.MAX_CONNECTIONS


def test_a_head_has_its_time(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.4)
    with served() as (_, port):
        began = time.monotonic()
        with (
            half(port, b"") as silent,
            half(port) as slow,
            half(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /") as next_,
        ):
            while not (gone(silent) and gone(slow)):
                slow.setblocking(True)
                try:
                    slow.sendall(b"x")  # a byte now and then does not buy more time
                except OSError:
                    break
                assert time.monotonic() - began < 3
            next_.settimeout(2)
            assert next_.recv(1000).startswith(b"HTTP/1.1 200")
            while next_.recv(1000):
                pass
        assert time.monotonic() - began < 3


def test_a_client_that_takes_nothing_of_its_answer_is_let_go(monkeypatch):
    monkeypatch.setattr(connections, "TAKE_S", 0.3)
    with served() as (url, port):
        with half(port, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n") as lazy:
            time.sleep(1)
            got = 0
            lazy.settimeout(2)
            with pytest.raises((ConnectionResetError, AssertionError)):
                while chunk := lazy.recv(1 << 20):
                    got += len(chunk)
                assert got > 50_000_000, "cut short"
        monkeypatch.setattr(connections, "TAKE_S", 30.0)
        assert len(httpx.get(f"{url}/large").content) == 50_000_000


def test_streams_that_are_open_are_not_closed_for_room(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with served() as (url, port), ExitStack() as stack:
        events = stack.enter_context(half(port, b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert events.recv(1000).startswith(b"HTTP/1.1 200")
        held = [stack.enter_context(half(port)) for _ in range(60)]
        assert httpx.get(f"{url}/healthz").text == "ok\n"
        assert sum(map(gone, held)) >= 40
        assert not gone(events)


def test_when_all_are_busy_the_newest_is_refused_with_a_word(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with served() as (url, port), ExitStack() as stack:
        for _ in range(3):
            stream = stack.enter_context(half(port, b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"))
            assert stream.recv(1000).startswith(b"HTTP/1.1 200")
        answer = httpx.get(f"{url}/healthz")
        assert answer.status_code == 503 and "too many requests" in answer.text
