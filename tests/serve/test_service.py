"""The console's endpoints, without a log and without a database: it starts, says so, and ends."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest

from millstream.app.graph import describe
from millstream.serve import run
from millstream.settings import Kafka, MillstreamError
from millstream.web.access import Access
from millstream.web.server import bind, port_of
from tests.serve.feed import application

pytestmark = pytest.mark.system
NOWHERE = Kafka("127.0.0.1:1")


@contextmanager
def console(kafka=NOWHERE, conninfo="host=127.0.0.1 port=1 dbname=x user=x password=sesame", description=None, **more):
    """Run the console in a thread; gives the address that it announces."""
    stop, told, found = threading.Event(), threading.Event(), {}

    def ready(facts):
        found.update(facts)
        told.set()

    arguments = (description or describe(application()), kafka, conninfo)
    thread = threading.Thread(
        target=run, args=arguments, kwargs={"ready": ready, "stop": stop, "token": "t0ken", **more}
    )
    thread.start()
    try:
        assert told.wait(10), "the console did not get ready"
        yield found["console"]
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive(), "the console did not end"


@pytest.fixture(scope="module")
def link():
    with console() as address:
        yield address


@pytest.fixture(scope="module")
def browser(link):
    with httpx.Client(base_url=link.split("/?")[0], timeout=10) as client:
        assert client.get(link).status_code == 303
        yield client


def test_the_link_is_of_this_machine_and_works_once(link, browser):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", link)
    assert httpx.get(link).status_code == 403


def test_without_the_link_there_is_a_page_that_says_what_to_do(browser):
    answer = httpx.get(browser.base_url)
    assert answer.status_code == 403
    assert "one-time link" in answer.text and "<code>millstream console</code>" in answer.text
    assert httpx.get(f"{browser.base_url}/api/state").status_code == 403
    assert httpx.get(f"{browser.base_url}/events").status_code == 403


def test_who_is_signed_in_can_invite_another_browser(browser):
    invitation = browser.post("/link").text
    with httpx.Client(base_url=browser.base_url, follow_redirects=True) as other:
        assert other.get(invitation).status_code == 200
        assert other.get("/").status_code == 200
    assert browser.post("/link", headers={"origin": "http://127.0.0.1:1"}).status_code == 403
    assert httpx.post(f"{browser.base_url}/link").status_code == 403


def test_the_page_and_everything_it_loads_is_here(browser):
    page = browser.get("/").text
    assets = re.findall(r'(?:src|href)="(/[^"#]+)"', page)
    assert len(assets) >= 6
    for asset in assets:
        answer = browser.get(asset)
        assert answer.status_code == 200, asset
        assert "immutable" in answer.headers["cache-control"]
    assert browser.get("/assets/../service.py").status_code in (403, 404)
    assert browser.get(assets[0].rsplit("/", 1)[0] + "/../pages.py").status_code in (403, 404)


def test_the_state_says_that_nothing_answers_and_keeps_secrets(browser):
    deadline = time.monotonic() + 20
    while not ((state := browser.get("/api/state").json())["kafka"]["error"] and state["postgres"]["error"]):
        assert time.monotonic() < deadline, state
    assert not state["kafka"]["up"] and not state["postgres"]["up"]
    assert "sesame" not in browser.get("/").text + str(state)
    assert state["app"] == "flights" and len(state["queries"]) == 3


def test_health_needs_no_sign_in(browser):
    assert httpx.get(f"{browser.base_url}/healthz").text == "ok\n"
    assert httpx.get(f"{browser.base_url}/healthz", headers={"host": "evil.example"}).status_code == 403


def test_metrics_are_for_who_is_signed_in_and_for_programs_with_the_token(browser):
    shown = browser.get("/metrics")
    assert shown.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE millstream_group_lag_events gauge" in shown.text
    url = f"{browser.base_url}/metrics"
    assert httpx.get(url).status_code == 403
    assert httpx.get(url, headers={"authorization": "Bearer t0ken"}).text == shown.text


def test_without_an_address_no_database_is_asked():
    with console(conninfo="") as address, httpx.Client(base_url=address.split("/?")[0], timeout=10) as client:
        client.get(address)
        assert client.get("/api/state").json()["postgres"] == {
            "name": "PostgreSQL", "up": False, "error": "No store of views is known: MILLSTREAM_POSTGRES is not set.",
            "since": None,
        }  # fmt: skip


def test_the_stream_sends_every_part_and_resumes(browser):
    def read(headers, until):
        with browser.stream("GET", "/events", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            text = ""
            for chunk in answer.iter_text():
                text += chunk
                if until in text:
                    return text
        raise AssertionError("the stream ended")

    text = read({}, 'hx-target="#processes"')
    assert all(f'hx-target="#{part}"' in text for part in ("totals", "graph", "queries", "view-delay_by_hour"))
    last = re.findall(r"^id: (.+)$", text, re.M)[-1]
    again = read({"last-event-id": last}, 'hx-target="#')  # the seconds of silence go on, so something changes
    assert 'hx-target="#processes"' not in again


def test_a_taken_port_is_an_error_that_names_it():
    with bind("127.0.0.1:0") as taken, pytest.raises(MillstreamError, match="is taken"):
        run(
            describe(application()), NOWHERE, "", listen=f"127.0.0.1:{port_of(taken)}",
            ready=lambda facts: None, stop=threading.Event(),
        )  # fmt: skip


def test_it_loads_nothing_heavy():
    code = (
        "import sys, millstream.serve.service, millstream.serve.pages;"
        "print([m for m in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_half_sent_requests_keep_nobody_out(browser):
    port = browser.base_url.port
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for _ in range(3):
            assert httpx.get(f"{browser.base_url}/healthz", timeout=5).text == "ok\n"
            assert browser.get("/").status_code == 200


def test_however_many_pages_are_open_each_gets_an_answer():
    with console() as address, contextlib.ExitStack() as stack:
        base = address.split("/?")[0]
        cookies = httpx.get(address).cookies
        limits = httpx.Limits(max_connections=None)
        client = stack.enter_context(httpx.Client(base_url=base, cookies=cookies, limits=limits, timeout=20))
        client.get("/")
        streams = []  # one that is forgotten is closed
        for n in range(110):
            answer = stack.enter_context(client.stream("GET", "/events"))
            assert answer.status_code == 200, n
            streams.append(answer.iter_text())
            first = next(streams[-1])
            assert first.startswith("retry: 1000" if n < 100 else "retry: 5000"), n
        assert 'hx-target="#totals"' in first + "".join(streams[-1])
        assert client.get("/").status_code == 200


def test_a_browser_stays_signed_in_over_a_restart(tmp_path):
    file = tmp_path / "console.json"
    with console(sessions=file, listen="127.0.0.1:0") as address:
        base = address.split("/?")[0]
        cookies = httpx.get(address).cookies
    port = int(base.rpartition(":")[2])
    with console(sessions=file, listen=f"127.0.0.1:{port}"):
        assert httpx.get(f"{base}/api/state", cookies=cookies).status_code == 200
        made = httpx.get(f"{base}/?token={Access(0, file).new_token()}")
        assert made.status_code == 303, "a link of the same user's command line"


def test_a_proxy_is_let_through_when_it_is_named():
    through = {"host": "page.example", "origin": "https://page.example"}
    with console(origins=["https://page.example"]) as address:
        base = address.split("/?")[0]
        answer = httpx.get(address, headers={"host": "page.example"})
        assert answer.status_code == 303 and "Secure" in answer.headers["set-cookie"]
        cookie = answer.headers["set-cookie"].partition(";")[0]
        invited = httpx.post(f"{base}/link", headers={**through, "cookie": cookie})
        assert invited.text.startswith("https://page.example/?token=")
    with console() as address:
        assert httpx.get(address, headers={"host": "page.example"}).status_code == 403


def test_pages_and_streams_are_compressed(browser):
    assert browser.get("/").headers["content-encoding"] == "gzip"
    with browser.stream("GET", "/events") as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert next(answer.iter_text()).startswith("retry: 1000")
