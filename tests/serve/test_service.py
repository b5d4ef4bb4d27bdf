"""The console's endpoints, without a log and without a database: it starts, says so, and ends."""

import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest

from millstream.serve import run
from millstream.settings import Kafka, MillstreamError
from millstream.web.server import bind, port_of
from tests.serve.feed import application

pytestmark = pytest.mark.system
NOWHERE = Kafka("127.0.0.1:1")


@contextmanager
def console(kafka=NOWHERE, conninfo="host=127.0.0.1 port=1 dbname=x user=x password=sesame", description=None):
    """Run the console in a thread; gives the address that it announces."""
    stop, told, found = threading.Event(), threading.Event(), {}

    def ready(facts):
        found.update(facts)
        told.set()

    arguments = (description or application().describe(), kafka, conninfo)
    thread = threading.Thread(target=run, args=arguments, kwargs={"ready": ready, "stop": stop, "token": "t0ken"})
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
    assert "This page is for who has its link" in answer.text
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
            application().describe(), NOWHERE, "", listen=f"127.0.0.1:{port_of(taken)}",
            ready=lambda facts: None, stop=threading.Event(),
        )  # fmt: skip


def test_it_loads_nothing_heavy():
    code = (
        "import sys, millstream.serve.service, millstream.serve.pages;"
        "print([m for m in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'uvloop') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
