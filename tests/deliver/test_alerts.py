"""Delivery on a real log: unchanged, once, and once still when the process is killed at its worst moments, or anywhere."""

import json
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from millstream.app.outputs import TopicSink
from millstream.app.query import Delivery
from millstream.client import admin
from millstream.client.producer import producer
from millstream.client.tail import tail
from millstream.deliver import failpoints, session
from millstream.deliver.alerts import run
from millstream.monitor import lag, status
from millstream.settings import Kafka, MillstreamError
from tests.brokers import ADDRESS, Broker, fresh, running_broker, wait_until

pytestmark = pytest.mark.system

CHILD = """
import json, signal, sys, threading
from millstream.app.query import Delivery
from millstream.app.outputs import TopicSink
from millstream.deliver.alerts import run
from millstream.settings import Kafka
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
address, app, *alert = sys.argv[1:]
candidates, to, group = alert
deliveries = [Delivery("late", candidates, group, TopicSink(to))]
run(app, deliveries, Kafka(address), ready=lambda facts: print("ready", json.dumps(facts), flush=True), stop=stop)
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


class Delivering:
    """The topics of one alert, what is written into them, and the process that delivers."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.app = fresh("app")
        self.to = f"{self.app}.late"
        self.alert = Delivery("late", f"_{self.app}.late", f"{self.app}.late.deliver", TopicSink(self.to))
        admin.ensure_topics(kafka, [(self.alert.candidates, 2, {}), (self.to, 2, {})])
        self.producer = producer(kafka, linger_ms=0)
        self.process: subprocess.Popen[str] | None = None

    def candidate(self, offset: int, *, value: bytes | None = None) -> None:
        """Write the candidate whose cause has `offset`; the same offset again is a replay."""
        self.producer.produce(
            self.alert.candidates,
            key=f"N{offset % 5}",
            value=value or json.dumps({"flight": offset}).encode(),
            partition=random.randrange(2),
            headers=[("origin", f"departures-{offset % 3}-{offset}")],
        )
        self.producer.poll(0)

    def start(self, failpoint: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, self.kafka.bootstrap, self.app]
        command += [self.alert.candidates, self.to, self.alert.group]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={failpoints.VARIABLE: failpoint} if failpoint else {}
        )
        return self.process

    def ready(self) -> None:
        assert self.process and self.process.stdout
        assert self.process.stdout.readline().startswith("ready")

    def end(self, how: signal.Signals) -> int:
        assert self.process and self.process.stdout
        self.process.send_signal(how)
        code = self.process.wait(30)
        self.process.stdout.close()
        return code

    def caught_up(self) -> bool:
        lags = lag.group_lag(self.kafka, self.alert.group)
        return len(lags) == 2 and not any(one.lag for one in lags)

    def written(self) -> list[int]:
        return [json.loads(m.value)["flight"] for m in tail(self.kafka, self.to, "earliest", follow=False)]

    def finish(self) -> list[int]:
        """Deliver what is left, in peace, and return what the topic holds."""
        self.producer.flush(30)
        self.start()
        self.ready()
        wait_until(self.caught_up, "everything delivered")
        assert self.end(signal.SIGTERM) == 0
        return self.written()


@pytest.fixture
def delivery(kafka):
    made = Delivering(kafka)
    yield made
    if made.process and made.process.poll() is None:
        made.end(signal.SIGKILL)


def test_alerts_are_forwarded_unchanged_and_once(delivery):
    for offset in [1, 2, 2, 3, 1]:
        delivery.candidate(offset, value=b"\x00not json")
    delivery.producer.flush(30)
    stop, ready = threading.Event(), threading.Event()
    arguments = (delivery.app, [delivery.alert], delivery.kafka)
    thread = threading.Thread(target=run, args=arguments, kwargs={"ready": lambda _: ready.set(), "stop": stop})
    thread.start()
    try:
        assert ready.wait(30)
        facts = wait_until(
            lambda: (
                (f := status.read(delivery.kafka, delivery.app).get(("deliver", "late"))) and f["suppressed"] == 2 and f
            ),
            "the status says so",
        )
    finally:
        stop.set()
        thread.join(30)
    messages = sorted(
        tail(delivery.kafka, delivery.to, "earliest", follow=False), key=lambda m: dict(m.headers)["origin"]
    )
    assert [(m.key, m.value) for m in messages] == [(b"N%d" % n, b"\x00not json") for n in (3, 1, 2)]
    assert [dict(m.headers)["origin"] for m in messages] == [b"departures-0-3", b"departures-1-1", b"departures-2-2"]
    assert facts["forwarded"] == 3
    assert facts["latency_ms"] is not None


def test_a_candidate_without_origin_is_delivered(delivery):
    delivery.producer.produce(delivery.alert.candidates, value=b'{"flight": 7}', partition=1)
    assert delivery.finish() == [7]
    assert delivery.finish() == [7]


def test_two_alerts_may_share_a_topic(delivery):
    other = Delivering(delivery.kafka)
    other.to = delivery.to
    other.alert = Delivery("late", other.alert.candidates, other.alert.group, TopicSink(other.to))
    delivery.candidate(1)
    assert delivery.finish() == [1]
    other.candidate(1)
    assert other.finish() == [1, 1]


def test_a_missing_topic_is_named(kafka, monkeypatch):
    monkeypatch.setattr(session, "TOPIC_S", 0.1)
    with pytest.raises(MillstreamError, match="there is no topic nowhere or nowhere-too"):
        run(
            "a",
            [Delivery("late", "nowhere", "g", TopicSink("nowhere-too"))],
            kafka,
            ready=print,
            stop=threading.Event(),
        )


@pytest.mark.parametrize("point", failpoints.ALL)
def test_killed_at_its_worst_moments(delivery, point):
    for offset in range(300):
        delivery.candidate(offset)
    delivery.producer.flush(30)
    process = delivery.start(f"{point}:{100 if point == failpoints.WRITTEN else 1}")
    assert process.wait(30) == -signal.SIGKILL
    for offset in range(200, 400):  # Spark was killed too
        delivery.candidate(offset)
    assert sorted(delivery.finish()) == list(range(400))


def test_what_a_killed_process_left_under_way_is_waited_for(delivery):
    """Its last alert arrives while the successor waits: the successor must see it when it reads back."""
    delivery.start(failpoints.MARKED).wait(30)
    delivery.candidate(1)
    delivery.producer.flush(30)
    waited = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        headers = [("origin", "departures-1-1"), ("query", delivery.alert.candidates)]
        delivery.producer.produce(delivery.to, value=b'{"flight": 1}', headers=headers)
        delivery.producer.flush(30)
        return False

    with status.Reporter(delivery.kafka, delivery.app) as reporter:
        alert = delivery.alert
        made = session.Session("late", alert.candidates, delivery.to, alert.group, delivery.kafka, reporter)
        assert made.open(wait)
        made.run(delivery.caught_up)
        made.close()
    assert waited == [session.SETTLE_S]
    assert delivery.written() == [1]
    assert delivery.finish() == [1]


def test_a_clean_end_is_not_waited_for(delivery):
    delivery.finish()
    with status.Reporter(delivery.kafka, delivery.app) as reporter:
        alert = delivery.alert
        made = session.Session("late", alert.candidates, delivery.to, alert.group, delivery.kafka, reporter)
        assert made.open(lambda seconds: pytest.fail("it waited"))
        made.close()


def test_it_goes_on_when_the_topic_is_made_anew(delivery):
    """The producer cannot go on; another session can."""
    delivery.start()
    delivery.ready()
    delivery.candidate(1)
    wait_until(lambda: delivery.written() == [1], "the first alert is there")
    # Or the next session would take it up again, which no topic knows of any more, and write it: rightly so.
    wait_until(delivery.caught_up, "its position is committed")
    admin.delete_topic(delivery.kafka, delivery.to)
    for offset in range(2, 10):
        delivery.candidate(offset)
    delivery.producer.flush(30)
    admin.ensure_topic(delivery.kafka, delivery.to, 2, {})
    wait_until(lambda: sorted(delivery.written()) == list(range(2, 10)), "the others are there", 60)
    assert delivery.end(signal.SIGTERM) == 0
    assert sorted(delivery.finish()) == list(range(2, 10))


def test_killed_anywhere(delivery):
    """Many rounds: candidates come all the time, with replays, and the process is killed after a random time."""
    random.seed(20130101)
    done = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not done.is_set():
            back = random.choice([0] * 8 + [50, 200])
            for offset in range(max(0, written - back), written + 20):
                delivery.candidate(offset)
            written += 20
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(12):
            delivery.start()
            if random.random() < 0.8:
                delivery.ready()
            time.sleep(random.uniform(0, 0.6))  # not a wait for something: the moment of the kill
            delivery.end(signal.SIGKILL)
    finally:
        done.set()
        writer.join()
    found = delivery.finish()
    assert len(found) == len(set(found)), f"{len(found) - len(set(found))} alerts were written again"
    assert sorted(found) == list(range(written))


def test_what_is_older_than_the_memory_is_looked_up_in_the_topic(delivery, monkeypatch):
    """As after the query's checkpoint was deleted: every candidate comes again."""
    monkeypatch.setattr(session, "Seen", lambda bounds=None: seen.Seen(bounds, capacity=20))
    from millstream.deliver import seen

    for again in range(2):
        for offset in range(100):
            delivery.candidate(offset)
        delivery.producer.flush(30)
        stop, ready = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=run,
            args=(delivery.app, [delivery.alert], delivery.kafka),
            kwargs={"ready": lambda _, ready=ready: ready.set(), "stop": stop},
        )
        thread.start()
        assert ready.wait(30)
        wait_until(delivery.caught_up, "everything delivered")
        stop.set()
        thread.join(30)
        assert sorted(delivery.written()) == list(range(100)), f"round {again}"


@pytest.mark.skipif(bool(ADDRESS), reason="kills the broker: needs one of its own")
def test_the_broker_is_killed_under_it(tmp_path):
    (tmp_path / "data").mkdir()
    broker = Broker(tmp_path / "data").start()
    try:
        delivery = Delivering(broker.kafka)
        delivery.start()
        delivery.ready()
        for round_ in range(3):
            for offset in range(round_ * 500, (round_ + 1) * 500):
                delivery.candidate(offset)
            delivery.producer.flush(30)
            broker.end(signal.SIGKILL)
            broker.start()
        wait_until(delivery.caught_up, "everything delivered")
        assert delivery.end(signal.SIGTERM) == 0
        assert sorted(delivery.written()) == list(range(1500))
    finally:
        broker.end()
