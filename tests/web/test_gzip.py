"""Answers and event streams in gzip: only for those who take it, and every event at once."""

import asyncio
import zlib

import pytest

from millstream.web.gzip import Gzip


def answer(messages, accepts=b"gzip, br", status=200, kind=b"text/html"):
    """Send an answer through; gives its headers and the bodies as they were sent."""
    sent = []

    async def application(scope, receive, send):
        headers = [(b"content-type", kind), (b"content-length", b"1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for n, body in enumerate(messages):
            await send({"type": "http.response.body", "body": body, "more_body": n < len(messages) - 1})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"Accept-Encoding", accepts)]}
    asyncio.run(Gzip(application)(scope, None, send))
    return dict(sent[0]["headers"]), [m["body"] for m in sent[1:]]


def test_an_answer_is_packed():
    headers, [body] = answer([b"millstream " * 1000])
    assert headers[b"content-encoding"] == b"gzip" and b"content-length" not in headers
    assert zlib.decompress(body, 31) == b"millstream " * 1000 and len(body) < 200


def test_each_event_is_readable_when_it_comes():
    headers, bodies = answer([b"data: one\n\n", b"data: two\n\n", b""], kind=b"text/event-stream; charset=utf-8")
    reader = zlib.decompressobj(31)
    assert [reader.decompress(body) for body in bodies] == [b"data: one\n\n", b"data: two\n\n", b""]
    assert headers[b"content-encoding"] == b"gzip"


@pytest.mark.parametrize(
    ("body", "more"),
    [
        (b"x" * 5000, {"accepts": b"br"}),
        (b"x" * 5000, {"accepts": b"gzip;q=0"}),
        (b"x" * 5000, {"kind": b"font/woff2"}),
        (b"x" * 5000, {"status": 403}),
        (b"small", {}),
    ],
)
def test_the_rest_is_sent_as_it_is(body, more):
    headers, bodies = answer([body], **more)
    assert b"content-encoding" not in headers and bodies == [body]
