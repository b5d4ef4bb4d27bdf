"""The real page in Chromium over a real log and a real database: it moves by itself, and comes back after an outage."""

import json
import shutil
import tempfile
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx
import pytest

from millstream.app.graph import describe
from millstream.postgresql.server import Server
from tests.brokers import ADDRESS, Broker, wait_until
from tests.serve.feed import Feed, application
from tests.serve.test_service import console

pytestmark = pytest.mark.system

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1440,1000",
)  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("log"))
    if ADDRESS:
        broker.address = ADDRESS
    else:
        broker.start()
    yield broker
    broker.end()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("database")) as server:
        server.database("millstream")
        yield server


@pytest.fixture(scope="module")
def feed(log, database):
    feed = Feed(log.kafka, database.conninfo(), rate=60)
    feed.prepare()
    for _ in range(3):
        feed.second()
    yield feed
    feed.close()


@pytest.fixture(scope="module")
def address(log, database, feed):
    with console(log.kafka, database.conninfo(), describe(application())) as found:
        yield found


@pytest.fixture(scope="module")
def page(address):
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium or no chromedriver on PATH")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            driver.get(address)
            driver.execute_script("window.sameDocument = true")
            yield driver
        finally:
            driver.quit()


def text(page, selector):
    return page.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)


def test_the_link_signs_in_and_leaves_the_address(page, address):
    assert page.current_url == address.split("?")[0]
    assert page.execute_script("return document.cookie") == ""
    wait_until(lambda: text(page, "#live") == "live", "the stream is open")


def test_numbers_move_without_a_reload(page, feed):
    before = wait_until(lambda: text(page, "#totals .lead dd"), "the headline is there")
    feed.second()
    after = wait_until(lambda: (now := text(page, "#totals .lead dd")) != before and now, "the number of events grows")
    assert int(after.replace(",", "")) > int(before.replace(",", ""))
    wait_until(lambda: text(page, "#topic-departures td:nth-of-type(3)") not in ("", "0"), "departures have a rate")
    assert page.execute_script("return window.sameDocument")


def test_an_alert_appears_as_it_comes(page, feed):
    feed.alert({"tailnum": "N-ALERT", "delay": 199, "departed_at": "2013-01-02T03:04:00+00:00"})
    began = time.monotonic()
    wait_until(lambda: "N-ALERT" in text(page, "#alerts li:first-child"), "the alert stands first")
    assert time.monotonic() - began < 10
    assert "2013-01-02 03:04" in text(page, "#alerts li:first-child")


def test_a_row_of_the_view_is_updated_and_the_chart_is_drawn(page, feed):
    feed.store.write(1_000, [("EWR", datetime(2099, 1, 1, 7, tzinfo=UTC), 12_345, 77.25, 99.0)])
    wait_until(lambda: "12,345" in text(page, "#view-delay_by_hour .rows tbody tr:first-child"), "the row is there")
    row = page.execute_script(
        "window.row = document.querySelector('#view-delay_by_hour .rows tbody tr'); return row.id"
    )
    feed.store.write(1_001, [("EWR", datetime(2099, 1, 1, 7, tzinfo=UTC), 12_346, 77.5, 99.0)])
    wait_until(lambda: "12,346" in text(page, f"#{row}") and "77.50" in text(page, f"#{row}"), "the row has changed")
    assert page.execute_script("return window.row === document.getElementById(arguments[0])", row), (
        "the row was replaced"
    )
    assert "batch 1,001" in text(page, "#view-delay_by_hour .meta")
    assert page.execute_script("return document.querySelector('#chart-delay_by_hour canvas').width") > 300
    assert "EWR" in text(page, "#chart-delay_by_hour .u-legend")


def test_another_column_can_be_drawn(page):
    page.execute_script("document.querySelector('#chart-delay_by_hour .choices button').click()")
    assert text(page, "#chart-delay_by_hour .choices [aria-pressed=true]") == "flights"
    canvas = "return document.querySelector('#chart-delay_by_hour canvas').toDataURL().length"
    assert page.execute_script(canvas) > 2_000


def test_dead_letters_come_with_their_reason(page, feed):
    feed.dead_letter("the field departed_at has no time zone")
    wait_until(lambda: "departed_at has no time zone" in text(page, "#dead-letters li:first-child"), "it stands first")


def test_what_is_opened_stays_open(page, feed):
    page.execute_script("document.querySelector('#alerts li details').open = true")
    before = text(page, "#totals .lead dd")
    feed.second()
    wait_until(lambda: text(page, "#totals .lead dd") != before, "the page has moved on")
    assert (
        page.execute_script("return [...document.querySelectorAll('#alerts details')].filter((d) => d.open).length")
        == 1
    )


def test_queries_groups_parts_and_processes_are_shown(page):
    assert "running" in text(page, "#query-enriched")
    assert "real-time" in text(page, "#query-very_late")
    wait_until(lambda: text(page, "#groups tbody tr td"), "the lag of a group")
    assert "3,322 rows" in text(page, "#part-capture-ops")
    assert "event time" in text(page, "#part-replay-flights")
    assert "1 restart" in text(page, "#processes")


def test_the_graph_is_drawn_and_flows(page, feed):
    feed.second()
    wait_until(lambda: page.execute_script("return document.querySelectorAll('.line.flowing').length"), "a line flows")
    assert page.execute_script("return document.querySelectorAll('.graph .node').length") == 14


@pytest.fixture
def phone(page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield page
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


TOO_WIDE = """
const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > 391
  && !e.closest(".scroll, .chart, .card > table"));
const whole = document.documentElement.scrollWidth;
return [innerWidth, whole, wide.slice(0, 9).map((e) => e.tagName + "." + e.className + "#" + e.id)];
"""


def test_the_page_fits_a_phone_whatever_the_keys(phone, feed):
    feed.alert({"tailnum": "N" * 500, "delay": 199})
    feed.dead_letter("x" * 400)
    feed.store.write(1_002, [("W" * 400, datetime(2099, 1, 2, 7, tzinfo=UTC), 1, 1.0, 1.0)])
    wait_until(lambda: "W" * 50 in text(phone, "#view-delay_by_hour .rows"), "the long key is there")
    width, content, wide = phone.execute_script(TOO_WIDE)
    assert (width, content) == (390, 390), wide
    assert phone.execute_script(
        "return document.querySelector('#view-delay_by_hour .rows td').getBoundingClientRect().width < 390"
    ), "one key leaves room for the other columns"


def test_what_cannot_be_seen_is_shown(page, feed):
    feed.alert({"tailnum": "N\u202eEVIL", "delay": 199})
    wait_until(lambda: "N⟨U+202E⟩EVIL" in text(page, "#alerts li:first-child"), "it is escaped")


def test_little_is_sent_when_nothing_happens(address, page):
    """467 kB a minute it was. The page of the test has the stream's first bytes; then only what changes is sent."""
    base = address.split("/?")[0]
    cookies = {c["name"]: c["value"] for c in page.get_cookies()}
    with httpx.stream("GET", f"{base}/events", cookies=cookies, timeout=30) as answer:
        began, settled = time.monotonic(), 0
        for _ in answer.iter_raw():
            if time.monotonic() - began > 75:  # the sparklines of the last minute have run out
                settled = settled or answer.num_bytes_downloaded
            if time.monotonic() - began > 105:
                break
        sent = answer.num_bytes_downloaded - settled
    assert settled and sent < 5_000, f"{sent} bytes in 30 s"


def test_figures_have_an_age(page):
    wait_until(lambda: "ago" in text(page, "#query-enriched .age"), "a query that says nothing shows since when")


def test_nothing_went_wrong_and_nothing_left_the_origin(page, address):
    errors = [e["message"] for e in page.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    assert errors == []
    origin = urlsplit(address).netloc
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(asked) >= 8
    # The browser's own new tab page, from before the first test, asks the browser itself (chrome://).
    assert {urlsplit(url).netloc for url in asked if urlsplit(url).scheme not in ("data", "chrome")} == {origin}


def test_a_database_that_went_away_is_said_and_its_return_is_seen(page, feed, database):
    database.stop()
    wait_until(lambda: "PostgreSQL does not answer" in text(page, "#problems"), "the page says that it is gone")
    database.start()
    wait_until(lambda: "PostgreSQL" not in text(page, "#problems"), "the page recovers")


@pytest.mark.skipif(bool(ADDRESS), reason="the Kafka of MILLSTREAM_TEST_KAFKA is not ours to stop")
def test_a_log_that_went_away_is_said_and_its_return_is_seen(page, feed, log):
    log.end()
    wait_until(lambda: "Kafka log does not answer" in text(page, "#problems"), "the page says that it is gone")
    log.start()
    wait_until(lambda: "Kafka" not in text(page, "#problems"), "the page recovers", 60)
    feed.alert({"tailnum": "N-AFTER", "delay": 200})
    wait_until(lambda: "N-AFTER" in text(page, "#alerts li:first-child"), "alerts come again", 60)
    assert page.execute_script("return window.sameDocument")


def test_a_page_outlives_its_console(tmp_path, page, log, database):
    """Dimmed while the console is away, live again without a new link."""
    from millstream.web.access import FILE

    with console(log.kafka, database.conninfo(), describe(application()), sessions=tmp_path / FILE) as found:
        page.get(found)
        page.execute_script("window.sameDocument = true")
        wait_until(lambda: text(page, "#live") == "live", "the stream is open")
    wait_until(lambda: "reconnecting, as of" in text(page, "#live"), "the page says that it is old")
    assert float(page.execute_script("return getComputedStyle(document.querySelector('main > section')).opacity")) < 0.7
    listen = urlsplit(found).netloc
    with console(log.kafka, database.conninfo(), describe(application()), sessions=tmp_path / FILE, listen=listen):
        wait_until(lambda: text(page, "#live") == "live", "the stream is back")
        assert page.execute_script("return getComputedStyle(document.querySelector('main > section')).opacity") == "1"
        assert page.execute_script("return window.sameDocument")
