"""What the watcher tells of its measurements: by values; and on real logs, ours and Apache Kafka."""

import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from millstream.client import admin
from millstream.client.groups import commit
from millstream.client.producer import producer
from millstream.monitor.behind import Behind, Meter
from millstream.monitor.forecast import Retention
from millstream.monitor.watch import CALM, FIRST_S, IDLE_S, PUBLISH_S, Judge, Watcher, read, told
from tests.apache_kafka import apache_kafka
from tests.brokers import Broker, fresh, wait_until

AN_HOUR = {"t": Retention(seconds=3600.0)}


def behind(committed, seconds=0.0, start=0, end=1000, group="g"):
    lag = end - committed
    return Behind(group, "t", 0, committed, start, end, lag, lag * 100, seconds, seconds)


class Clock:
    """A judge and its measurements, a minute apart."""

    def __init__(self):
        self.judge, self.at = Judge(), 0.0

    def told(self, *measured, limits=AN_HOUR):
        self.at += 60.0
        return self.judge.take(self.at, measured, limits, lambda topic, partition: 100.0)


def kinds(told):
    return {key.split("/")[0]: value for key, value in told.items()}


def test_figures_are_told_when_they_change_and_not_too_often():
    clock = Clock()
    value = clock.told(behind(10, 60.0))["lag/g"]
    assert (value["lag"], value["bytes"], value["seconds"], value["loss_in"]) == (990, 99_000, 60.0, 3540.0)
    assert value["partitions"][0]["by"] == "time"
    assert "lag/g" in clock.told(behind(10, 120.0))
    clock.at += PUBLISH_S / 2 - 60
    assert clock.told(behind(1000)) == {}
    assert clock.told(behind(1000)).keys() == {"lag/g"}
    assert clock.told(behind(1000)) == {}
    assert clock.judge.pause == IDLE_S


def test_a_warning_is_told_once_and_ends_after_some_calm():
    clock = Clock()
    assert "warning" not in kinds(clock.told(behind(10, 1000.0)))
    value = clock.told(behind(10, 3100.0))["warning/g/t/0"]
    assert value["state"] == "open"
    assert "group g may begin to miss events of t [0] in 500 s, by retention.ms" in value["text"]
    assert "warning" not in kinds(clock.told(behind(10, 3200.0)))
    assert clock.judge.snapshot.warnings == {("g", "t", 0)}
    for _ in range(CALM - 1):
        assert "warning" not in kinds(clock.told(behind(900, 10.0)))
    assert clock.told(behind(900, 10.0))["warning/g/t/0"]["state"] == "over"


def test_a_group_that_is_gone_takes_its_warning_with_it():
    clock = Clock()
    clock.told(behind(10, 3500.0))
    assert clock.told()["warning/g/t/0"]["state"] == "over"
    assert clock.judge.snapshot.warnings == set()


def test_losses_are_told_with_their_offsets():
    clock = Clock()
    clock.told(behind(10, 3500.0))
    value = clock.told(behind(10, 3500.0, start=50))["loss/g/t/0/10"]
    assert (value["first"], value["until"], value["events"], value["over"]) == (10, 50, 40, False)
    assert value["text"] == (
        "group g has missed 40 events of t [0]: offsets 10 to 49 were deleted before it had committed them;"
        " it has not gone on yet"
    )
    assert clock.told(behind(900, 3500.0, start=50))["loss/g/t/0/10"]["over"]
    assert clock.judge.snapshot.missed == {("g", "t", 0): 40}


def test_what_an_earlier_watcher_told_is_not_told_again():
    first = Clock()
    told = list(first.told(behind(10, 3500.0, start=50)).values())
    second = Clock()
    for value in told:
        second.judge.know(value)
    assert kinds(second.told(behind(10, 3500.0, start=50))).keys() == {"lag"}
    assert second.told(behind(10, 3500.0, start=60))["loss/g/t/0/10"]["until"] == 60
    assert second.judge.snapshot.missed == {("g", "t", 0): 10}


FIELDS = [
    "group",
    "topic",
    "partition",
    "partitions",
    "at",
    "kind",
    "state",
    "text",
    "id",
    "first",
    "until",
    "possible",
    "over",
]
WORDS = st.sampled_from(["lag", "warning", "loss", "open", "loss_in", "t", "g", *FIELDS])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=8,
)
OURS = st.sampled_from(list(Clock().told(behind(10, 3500.0, start=50)).values()))
ALMOST = st.builds(lambda value, key, odd: {**value, key: odd}, OURS, WORDS, JSON)
KEYS = st.none() | st.binary(max_size=3)


@given(st.lists(st.tuples(KEYS, KEYS | JSON | ALMOST)))
def test_any_message_in_its_topic_is_what_was_told_or_nothing(messages):
    written = [(key, v if v is None or isinstance(v, bytes) else json.dumps(v).encode()) for key, v in messages]
    found = told(written)
    judge = Judge()
    for value in found.values:
        judge.know(value)
        assert value["text"] and value["at"] + 1
    found.loss_in(behind(10), 0.0)


def test_what_was_told_is_read_back():
    values = Clock().told(behind(10, 3500.0, start=50))
    found = told((key.encode(), json.dumps(value).encode()) for key, value in values.items())
    assert [*found.lags.values(), *found.values] == sorted(
        values.values(), key=lambda v: ["lag", "warning", "loss"].index(v["kind"])
    )
    assert told([(b"lag/g", b"{}"), (b"lag/g", json.dumps(values["lag/g"]).encode()), (b"lag/g", None)]).lags == {}


def test_the_sooner_something_may_be_lost_the_sooner_is_the_next_look():
    clock = Clock()
    for expected in (FIRST_S, FIRST_S, 2.0):
        clock.told(behind(1000), limits={"t": Retention(seconds=20.0)})
        assert clock.judge.pause == expected
    clock.told(behind(10, 0.0, start=50))
    assert clock.judge.pause == IDLE_S


# On real logs

RETENTION = {"retention.ms": "6000", "segment.ms": "1000"}
CHECKS = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}


@pytest.fixture(scope="module", params=["ours", "apache"])
def kafka(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    if request.param == "apache":
        with apache_kafka(folder, CHECKS) as address:
            yield address
        return
    broker = Broker(folder / "data", {"log.retention.check.interval.ms": "500"}).start()
    try:
        yield broker.kafka
    finally:
        broker.end()


def write(kafka, topic, count, partition=0, size=100):
    client = producer(kafka)
    for n in range(count):
        client.produce(topic, value=b"%0*d" % (size, n), partition=partition)
    assert client.flush(30) == 0


@pytest.mark.system
def test_lag_in_events_bytes_and_seconds(kafka):
    topic, group = fresh("topic"), fresh("group")
    admin.ensure_topic(kafka, topic, 2, {"retention.ms": "3600000"})
    write(kafka, topic, 100)
    time.sleep(1.1)
    write(kafka, topic, 50)
    commit(kafka, group, {(topic, 0): 20, (topic, 1): 0})
    with Meter(kafka) as meter:
        _, [first, second] = meter.measure([group])
        assert meter.retention([topic]) == {topic: Retention(3600.0, None)}
    assert (first.lag, first.start, first.end) == (130, 0, 150)
    assert first.bytes == 130 * 110
    assert 1.0 < first.span <= first.seconds < 30
    assert second == replace(second, lag=0, bytes=0, seconds=0.0, span=0.0)


class Stalling:
    """A consumer that reads 30 events, commits, and then stands still as long as the test likes, a member all the time."""

    def __init__(self, kafka, topic, group):
        self._client = Consumer(kafka.client(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False))
        self._client.subscribe([topic])
        self.read = []
        while len(self.read) < 30:
            self.poll()
        # What was fetched ahead is dropped, as a restart would: else it would still be read after it was deleted.
        self._client.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
        self._client.pause([TopicPartition(topic, 0)])
        self._topic = topic

    def poll(self):
        message = self._client.poll(0.1)
        if message is not None and message.error() is None:
            self.read.append(message.offset())

    def go_on(self):
        """Read from the committed offset on until there is something, and commit it; returns the first offset read."""
        self.read.clear()
        place = TopicPartition(self._topic, 0, 30)
        self._client.seek(place)
        self._client.resume([place])
        wait_until(lambda: self.poll() or self.read, "the consumer reads again")
        self._client.commit(offsets=[TopicPartition(self._topic, 0, self.read[-1] + 1)], asynchronous=False)
        return self.read[0]

    def close(self):
        self._client.close()


@pytest.mark.system
def test_a_stalled_consumer_is_warned_of_before_its_first_loss_which_is_reported_by_offset(kafka):
    topic, group = fresh("topic"), fresh("group")
    admin.ensure_topic(kafka, topic, 1, RETENTION)
    write(kafka, topic, 100)
    consumer = Stalling(kafka, topic, group)

    def start():
        return admin.start_offsets(kafka, [topic])[topic, 0]

    def losses():
        return [value for value in read(kafka).losses if value["group"] == group]

    with Watcher(kafka):

        def warned():
            write(kafka, topic, 1)
            return [value for value in read(kafka).warnings if value["group"] == group]

        [warning] = wait_until(warned, "a warning")
        assert start() <= 30, "the warning came before the first loss"
        assert (warning["committed"], warning["start"]) == (30, 0)

        def lost():
            write(kafka, topic, 1)
            return losses()

        [loss] = wait_until(lost, "a report of the loss")
        assert loss["at"] > warning["at"]
        assert (loss["first"], loss["over"]) == (30, False)
        # Nothing is written now, so the start comes to rest at the end, and the report has to name everything before it.
        end = admin.end_offsets(kafka, [topic])[topic, 0]
        wait_until(lambda: start() == end, "everything is deleted")
        wait_until(lambda: [(one["first"], one["until"]) for one in losses()] == [(30, end)], "the report has it all")
        write(kafka, topic, 5)
        assert consumer.go_on() == end, "what the consumer could not read any more is what the report names"
        [loss] = wait_until(lambda: [one for one in losses() if one["over"]], "the loss is over")
        assert (loss["first"], loss["until"], loss["possible"], loss["events"]) == (30, end, end, end - 30)
    consumer.close()


@pytest.mark.system
def test_a_loss_by_size_is_warned_of_and_reported_too(kafka):
    topic, group = fresh("topic"), fresh("group")
    admin.ensure_topic(kafka, topic, 1, {"retention.bytes": "1048576", "segment.bytes": "1048576"})
    write(kafka, topic, 10, size=1000)
    commit(kafka, group, {(topic, 0): 7})
    told = {}

    def look():
        write(kafka, topic, 50, size=1000)
        known = read(kafka)
        for value in (*known.warnings, *known.losses):
            if value["group"] == group:
                told.setdefault(value["kind"], value)
        return "loss" in told

    with Watcher(kafka):
        wait_until(look, "the loss is reported", 60)
        assert told["warning"]["by"] == "size"
        assert told["warning"]["at"] < told["loss"]["at"]
        assert (told["warning"]["start"], told["loss"]["first"]) == (0, 7)
        start = admin.start_offsets(kafka, [topic])[topic, 0]
        wait_until(
            lambda: [loss for loss in read(kafka).losses if (loss["group"], loss["until"]) == (group, start)],
            "the report names what lies before the start",
        )
