"""What the page reads and what it is asked, of any kind: no exception in rendering, no 500, no hang, no traceback."""

import json
import socket
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.consumer import json_object
from millstream.monitor.status import _key
from millstream.serve.known import judged
from millstream.serve.letters import alert, dead_letter
from millstream.serve.pages import Pages
from tests.serve.test_console import DESCRIPTION, reading, state, topic
from tests.serve.test_service import console

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "state",
        "error",
        "at",
        "mode",
        "batch",
        "batch_ms",
        "input_rows",
        "output_rows",
        "rows_per_second",
        "watermark",
        "dropped",
        "dead",
        "state_rows",
        "tables",
        "sent",
        "total",
        "memory",
        "pid",
        "restarts",
        "text",
        "lag_bytes",
        "app",
        "kind",
        "name",
    ]
)
FACTS = st.dictionaries(NAMES, JSON | st.sampled_from(["running", "failed", "ready", "restarting"]), max_size=8)
KINDS = st.sampled_from(
    [
        "query/enriched",
        "query/dead_letters",
        "query/odd",
        "capture/ops",
        "replay/flights",
        "deliver/x",
        "process/spark",
        "process/a/b",
        "process/",
        "odd/x",
    ]
)
DEEP = [b'{"at": ' + b"[" * depth + b"]" * depth + b"}" for depth in (400, 5000)]
PAGES = Pages(DESCRIPTION)


def sent(value):
    """Bytes as somebody else's producer may send them: JSON that Python writes, NaN and all."""
    return json.dumps(value).encode()


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        KINDS, FACTS.map(sent) | JSON.map(sent) | st.binary(max_size=20) | st.sampled_from(DEEP), max_size=5
    )
)
def test_any_message_in_the_status_topic_is_shown_or_left_out(messages):
    facts = {}
    for key, value in messages.items():
        known, said = _key(f"flights/{key}".encode(), "flights"), json_object(value)
        if known and said is not None:
            facts[known] = said
    found = judged(state(facts=facts, reading=reading(topic("departures", 5))))
    parts = PAGES.parts(found)
    assert not [part for part, html in parts.items() if "cannot be shown" in html]
    assert PAGES.page(found)
    assert msgspec.json.encode(found)


def message(key, value, headers=()):
    """A message as the client gives it."""
    return SimpleNamespace(
        topic=lambda: "late_departures",
        partition=lambda: 0,
        offset=lambda: 7,
        timestamp=lambda: (1, -1),
        key=lambda: key,
        value=lambda: value,
        headers=lambda: [*headers],
    )


BYTES = (
    st.none()
    | st.binary(max_size=30)
    | JSON.map(sent)
    | st.sampled_from(DEEP)
    | st.dictionaries(
        st.sampled_from(["reason", "value", "encoding", "at", "topic", "x"]),
        JSON | st.sampled_from(["base64", "2013-01-01T00:00:00Z"]),
    ).map(sent)
)


@settings(max_examples=200, deadline=None)
@given(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=6) | st.just("origin"), BYTES), max_size=2))
def test_any_alert_and_dead_letter_is_shown(key, value, headers):
    found = state(alerts=[alert(message(key, value, headers))])
    found.dead_letters.newest = [dead_letter(message(key, value, headers))]
    try:
        parts = PAGES.parts(found)
        assert not [part for part, html in parts.items() if "cannot be shown" in html]
        assert msgspec.json.encode(found)
    finally:
        found.dead_letters.newest = []


@pytest.fixture(scope="module")
def served():
    """The real console, signed in: its port and the cookie."""
    with console() as address:
        base = address.split("/?")[0]
        [(name, secret)] = httpx.get(address).cookies.items()
        yield int(base.rpartition(":")[2]), f"{name}={secret}"


LINES = st.sampled_from(
    [
        "GET / HTTP/1.1",
        "POST /link HTTP/1.1",
        "GET /api/state HTTP/1.0",
        "HEAD / HTTP/1.1",
        "GET /metrics HTTP/1.1",
        "PUT / HTTP/1.1",
        "GET //evil.example/..%2f?token=x HTTP/1.1",
        "GET /assets/../../pages.py HTTP/1.1",
        "GET /assets/%00 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET /healthz HTTP/1.1",
        "GET http://x/ HTTP/1.1",
        "GET /?token=%ff%fe HTTP/1.1",
        "GET /%ff HTTP/1.1",
        "CONNECT x:1 HTTP/1.1",
        "PRI * HTTP/2.0",
        "GET /events2 HTTP/1.1",
        "\x16\x03\x01",
    ]
)
HEADERS = st.sampled_from(
    [
        "Host: {host}",
        "Host: evil.example",
        "Host:",
        "Cookie: {cookie}",
        "Cookie: =;;\x01",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Content-Length: 5",
        "Content-Length: -1",
        "Transfer-Encoding: chunked",
        "Accept-Encoding: gzip;q=x, *",
        "Last-Event-ID: \u00e9-9",
        "Authorization: Bearer \u00ff",
        "Upgrade: websocket",
        "Connection: upgrade",
        "Expect: 100-continue",
        "Range: bytes=9-1",
        ": x",
    ]
)


@pytest.mark.system
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES | st.text(max_size=40), st.lists(HEADERS | st.text(max_size=20), max_size=6), st.binary(max_size=40))
def test_any_request_gets_an_answer_or_is_closed(served, line, headers, body):
    port, cookie = served
    text = "\r\n".join(
        [line, *(h.replace("{host}", f"127.0.0.1:{port}").replace("{cookie}", cookie) for h in headers), "", ""]
    )
    with socket.create_connection(("127.0.0.1", port), 5) as asked:
        asked.sendall(text.encode("utf-8", "replace") + body)
        asked.shutdown(socket.SHUT_WR)
        asked.settimeout(10)
        answer = b""
        while chunk := asked.recv(65536):
            answer += chunk
            if len(answer) > 100_000:
                break
    assert not answer or answer.startswith(b"HTTP/1.1 ")
    assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]
    assert b"Traceback" not in answer
    assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).text == "ok\n"
