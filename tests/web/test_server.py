"""Binding: loopback only, a port that is taken, and serving until told to stop."""

import socket
import threading
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millstream.settings import MillstreamError
from millstream.web.events import EventStream, Hub
from millstream.web.server import bind, parse, port_of, serve, url_of


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("localhost:8080", ("127.0.0.1", 8080)),
        ("[::1]:9", ("::1", 9)),
        ("127.9.9.9:1", ("127.9.9.9", 1)),
    ],
)
def test_loopback_addresses_are_understood(listen, expected):
    assert parse(listen) == expected


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.168.1.4:80", "8.8.8.8:1"])
def test_other_addresses_are_refused(listen):
    with pytest.raises(MillstreamError, match="refusing to listen"):
        parse(listen)


@pytest.mark.parametrize("listen", ["", "8080", ":8080", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"])
def test_nonsense_is_refused(listen):
    with pytest.raises(MillstreamError, match="expected HOST:PORT"):
        parse(listen)


def test_a_name_is_not_looked_up():
    with pytest.raises(MillstreamError, match="expected an IP address or localhost"):
        parse("example.com:80")


def test_a_taken_port_is_named():
    with bind("127.0.0.1:0") as first, pytest.raises(MillstreamError, match=f"port {port_of(first)} .* is taken"):
        bind(f"127.0.0.1:{port_of(first)}")


def test_the_url_of_ipv6_has_brackets():
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        bound = bind("[::1]:0")
    except MillstreamError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with bound:
        assert url_of(bound) == f"http://[::1]:{port_of(bound)}"


def test_it_serves_until_told_to_stop_with_streams_open():
    hub = Hub()

    async def hello(_):
        return PlainTextResponse("hello")

    async def stream(_):
        return EventStream(hub.connect())

    stop, started = threading.Event(), threading.Event()
    bound = bind("127.0.0.1:0")
    url = url_of(bound)
    serving = threading.Thread(
        target=serve,
        args=(Starlette(routes=[Route("/", hello), Route("/events", stream)]), bound, stop),
        kwargs={"started": started.set, "closing": hub.close},
    )
    serving.start()
    assert started.wait(10)
    answer = httpx.get(url)
    assert answer.text == "hello"
    assert "server" not in answer.headers
    with httpx.stream("GET", f"{url}/events", timeout=10) as events:
        chunks = events.iter_bytes()
        assert next(chunks).startswith(b"retry:")
        began = time.monotonic()
        stop.set()
        assert b"".join(chunks) == b""
    serving.join(10)
    assert not serving.is_alive()
    assert time.monotonic() - began < 5
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_answers_do_not_wait_for_acknowledgements():
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""
    with bind("127.0.0.1:0") as bound:
        assert bound.proto == socket.IPPROTO_TCP
