"""Sending events and reading views from Python: where they go, that they are there, and what is said when they are not."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

import millstream as ms
from millstream.app.inputs import Topic
from millstream.client import admin, sender
from millstream.client.sender import SendError
from millstream.client.tail import tail
from millstream.run import outside, runfile
from millstream.run.lock import Lock
from millstream.settings import Kafka, MillstreamError, Settings
from tests.brokers import fresh, running_broker

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Order(ms.Event):
    user: str | None
    amount: float


class Other(ms.Event):
    user: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, and no address from anywhere."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def orders():
    return Topic(fresh("orders"), Order, key="user", partitions=3)


def stored(kafka, topic):
    return [(m.key, json.loads(m.value)) for m in tail(kafka, topic.name, "earliest", follow=False)]


# Where the log is


def test_without_anything_running_the_error_has_the_line_to_type(folder, orders):
    with pytest.raises(
        MillstreamError, match=r"no log is known: nothing runs in .*millstream run FILE.*MILLSTREAM_KAFKA"
    ):
        orders.send(Order(amount=1.0))
    app = ms.App("shop")
    with pytest.raises(MillstreamError, match="'shop' has no view 'totals'; it has none"):
        app.read("totals")
    app.view(app.topic("orders", Order), key="user", name="totals")(lambda orders: orders)
    with pytest.raises(
        MillstreamError, match=r"view shop\.totals cannot be read: nothing runs in .*MILLSTREAM_POSTGRES"
    ):
        app.read("totals")
    with pytest.raises(MillstreamError, match="limit must be a number of rows, got 'x'"):
        app.read("totals", limit="x")


def test_a_log_that_does_not_answer_is_named(folder, orders, monkeypatch):
    monkeypatch.setattr(sender, "ANSWER_S", 0.2)
    monkeypatch.setenv("MILLSTREAM_KAFKA", "127.0.0.1:1")
    with pytest.raises(MillstreamError, match=r"no log answers at 127\.0\.0\.1:1\. Start the application"):
        orders.send(Order(amount=1.0))


def test_what_is_being_started_is_waited_for(folder):
    data = folder / ".millstream"
    data.mkdir()
    lock = Lock(data)
    try:
        running = runfile.Running("id", "shop", os.getpid())
        running.write(data)
        running.addresses["kafka"] = "127.0.0.1:7"
        later = threading.Timer(0.3, lambda: running.write(data))
        later.start()
        assert outside._log(None) == Kafka("127.0.0.1:7")
        later.join()
    finally:
        lock.release()
    with pytest.raises(MillstreamError, match="nothing runs"):
        outside._log(None)
    (data / "home.json").write_text(
        json.dumps({"version": 1, "app": "shop", "kafka": "log:9092", "postgres": "", "inputs": {}})
    )
    assert outside._log(None) == Kafka("log:9092"), "the last run had an address"
    assert outside._log(Settings(kafka=Kafka("named:1"))) == Kafka("named:1")


# What a message is


@bounded(max_examples=100, deadline=None)
@given(
    st.none() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.just(AT) | st.just(Decimal("1.50"))
    | st.binary()
)  # fmt: skip
def test_keys_are_the_text_of_the_value(value):
    found = outside._key(value)
    expected = {None: None, True: b"true", False: b"false"}.get(value if value in (None, True, False) else "", b"?")
    if type(value) in (bool, type(None)):
        assert found == expected
    elif isinstance(value, bytes):
        assert found == value
    elif isinstance(value, str):
        assert found == value.encode()
    else:
        assert found == (b"2026-01-01T00:00:00Z" if value is AT else str(value).encode())


def test_what_the_topic_does_not_take_is_said(orders):
    for wrong, message in (
        (Other(user="a"), r"takes Order\(…\), got Other: Other\(user='a'\)"),
        ({"user": "a"}, r"takes Order\(…\), got dict"),
        (Order(user="\ud800", amount=1.0), "cannot be written: .*surrogates"),
    ):
        with pytest.raises(MillstreamError, match=message):
            list(outside.messages(orders, [wrong]))


# With a log


@pytest.mark.system
def test_one_and_many_are_acknowledged_before_they_return(kafka, orders, folder, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_KAFKA", kafka.bootstrap)
    orders.send(Order(user="a", amount=1.0))
    assert stored(kafka, orders) == [(b"a", {"user": "a", "amount": 1.0})]
    [facts] = admin.describe_topics(kafka, [orders.name])
    assert facts.partitions == 3, "the topic was made as it is declared"
    assert orders.send_many(Order(user=f"u{n % 5}", amount=n) for n in range(20_000)) == 20_000
    found = stored(kafka, orders)
    assert len(found) == 20_001
    for user in range(5):
        amounts = [value["amount"] for key, value in found if key == f"u{user}".encode()]
        assert amounts == sorted(amounts), "equal keys stay in order"
    orders.send(Order(amount=2.0), key="mine")
    assert (b"mine", {"user": None, "amount": 2.0}) in stored(kafka, orders)
    assert orders.send_many([]) == 0


@pytest.mark.system
def test_a_topic_that_was_deleted_is_made_again(kafka, orders):
    here = Settings(kafka=kafka)
    orders.send(Order(amount=1.0), settings=here)
    admin.delete_topic(kafka, orders.name)
    with suppress(SendError):  # the producer knows the old topic's partitions
        orders.send(Order(amount=2.0), settings=here)
    orders.send(Order(amount=3.0), settings=here)
    assert {"user": None, "amount": 3.0} in [value for _, value in stored(kafka, orders)]
