"""Sending: acknowledged or said, in order, from any thread, once whatever happens to the broker."""

from __future__ import annotations

import json
import signal
import threading

import pytest

import millstream as ms
from millstream.app.inputs import Topic
from millstream.client import sender
from millstream.client.sender import SendError
from millstream.client.tail import tail
from millstream.settings import Settings
from tests.brokers import Broker, fresh, running_broker


class Order(ms.Event):
    user: str | None
    amount: float


class Other(ms.Event):
    user: str


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.fixture
def orders():
    return Topic(fresh("orders"), Order, key="user", partitions=3)


def stored(kafka, topic):
    return [(m.key, json.loads(m.value)) for m in tail(kafka, topic.name, "earliest", follow=False)]


@pytest.mark.system
def test_a_failure_says_which_were_not_written(kafka, orders):
    here = Settings(kafka=kafka)
    good = [Order(user="a", amount=n) for n in range(10)]
    with pytest.raises(SendError) as caught:
        orders.send_many([*good, Other(user="x"), *good], settings=here)
    error = caught.value
    assert (error.written, error.taken, list(error.failed)) == (10, 11, [10])
    assert "10 of 11 events were written, 1 were not (number 10: topic" in str(error)
    assert len(stored(kafka, orders)) == 10
    with pytest.raises(SendError, match=r"(?i)too large") as caught:
        orders.send_many([*good, Order(user="x" * 2_000_000, amount=1.0)], settings=here)
    assert (caught.value.written, list(caught.value.failed)) == (10, [10])
    assert orders.send_many(good, settings=here) == 10

    def broken():
        yield from good
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        orders.send_many(broken(), settings=here)
    assert len(stored(kafka, orders)) == 40, "what came before an error of the caller's is written"


@pytest.mark.system
def test_threads_share_a_producer(kafka, orders):
    here = Settings(kafka=kafka)
    failures = []

    def work(user):
        try:
            for n in range(50):
                orders.send(Order(user=user, amount=n), settings=here)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[f"t{n}"]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stored(kafka, orders)
    assert not failures and len(found) == 200
    for n in range(4):
        assert [v["amount"] for k, v in found if k == f"t{n}".encode()] == list(range(50))


@pytest.mark.system
@pytest.mark.fault
def test_a_broker_that_is_killed_loses_nothing_and_repeats_nothing(tmp_path, orders):
    (tmp_path / "log").mkdir()
    broker = Broker(tmp_path / "log").start()
    here = Settings(kafka=broker.kafka)
    half, again = threading.Event(), threading.Event()

    def many():
        for n in range(3_000):
            if n == 1_500:
                half.set()
                assert again.wait(30)
            yield Order(user="a", amount=n)

    sent = []
    sending_ = threading.Thread(target=lambda: sent.append(orders.send_many(many(), settings=here)))
    try:
        sending_.start()
        assert half.wait(30)
        broker.end(signal.SIGKILL)
        again.set()
        broker.start()
        sending_.join(60)
        assert sent == [3_000]
        assert [value["amount"] for _, value in stored(broker.kafka, orders)] == list(range(3_000))
    finally:
        again.set()
        broker.end()


@pytest.mark.system
def test_a_log_that_went_away_ends_in_an_error_not_in_a_wait(tmp_path, orders, monkeypatch):
    monkeypatch.setattr(sender, "DELIVERY_S", 1.0)
    (tmp_path / "log").mkdir()
    broker = Broker(tmp_path / "log").start()
    here = Settings(kafka=broker.kafka)
    orders.send(Order(amount=1.0), settings=here)
    broker.end()
    with pytest.raises(SendError, match=r"0 of 1 events were written, 1 were not \(number 0: .*[Tt]imed out"):
        orders.send(Order(amount=2.0), settings=here)
