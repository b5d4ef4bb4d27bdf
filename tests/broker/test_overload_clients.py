"""What each overload policy does to real clients while a consumer is stalled: bounded, counted, shown."""

import contextlib
import os
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.broker.serving import Process
from tests.brokers import fresh, wait_until

pytestmark = pytest.mark.system
KIB = 1024
VALUE = os.urandom(10 * KIB)
LIMIT = 1000 * KIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Process(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.address})


def create(admin, name, **config):
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(name, 1, config=settings)])[name].result(10)


def counters(admin, topic):
    resource = ConfigResource("topic", topic)
    found = admin.describe_configs([resource])[resource].result(10)
    prefix = "millstream.overload."
    return {n.removeprefix(prefix): int(c.value) for n, c in found.items() if n.startswith(prefix) and c.is_read_only}


def producer(broker, **more):
    return Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "batch.size": 60_000, **more})


def commit(broker, group, topic, offset):
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def end(broker, topic):
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "ends"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    finally:
        consumer.close()


def memory(broker):
    with open(f"/proc/{broker.popen.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def send(producer, topic, count):
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, VALUE)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)


def test_backpressure_slows_then_blocks_then_goes_on(broker, admin):
    topic = fresh("pressed")
    create(admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=LIMIT)
    commit(broker, "slow", topic, 0)
    delivered = []
    source = producer(broker, **{"enable.idempotence": True})
    for i in range(300):
        source.produce(topic, VALUE, on_delivery=lambda error, m, i=i: delivered.append((i, error, m.offset())))
    wait_until(lambda: source.poll(0.05) is None or counters(admin, topic)["waiting.requests"] > 0, "an append waits")
    source.poll(0.5)
    _, stopped = end(broker, topic)
    assert LIMIT <= stopped * (10 * KIB + 100) <= LIMIT + 100 * KIB
    seen = counters(admin, topic)
    assert seen["throttled.requests"] > 0 and seen["throttled.ms"] > 0
    assert 0 < seen["waiting.bytes"] <= 600 * KIB
    # The consumer catches up bit by bit; everything arrives, once and in order.
    position = 0

    def go_on():
        nonlocal position
        source.poll(0.05)
        position = min(position + 20, end(broker, topic)[1])
        commit(broker, "slow", topic, position)
        return len(delivered) == 300

    wait_until(go_on, "all delivered")
    assert [(i, error, offset) for i, error, offset in delivered] == [(i, None, i) for i in range(300)]
    seen = counters(admin, topic)
    assert seen["waiting.requests"] == seen["waiting.bytes"] == 0 and seen["blocked.ms"] > 0


def test_the_wait_ends_in_a_retriable_error(broker, admin):
    topic = fresh("late")
    create(admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=30_000)
    commit(broker, "slow", topic, 0)
    errors = []
    source = producer(
        broker, **{"request.timeout.ms": 1000, "message.timeout.ms": 3000, "retries": 0, "acks": "all", "linger.ms": 1}
    )
    for _ in range(10):
        source.produce(topic, VALUE, on_delivery=lambda error, _: errors.append(error))
        source.poll(0.01)
    source.flush(20)
    failed = [error for error in errors if error is not None]
    assert failed and {error.code() for error in failed} <= {KafkaError.REQUEST_TIMED_OUT, KafkaError._MSG_TIMED_OUT}
    assert any(error.code() == KafkaError.REQUEST_TIMED_OUT for error in failed)
    assert counters(admin, topic)["timed.out.requests"] > 0
    assert end(broker, topic)[1] < 10


def test_groups_that_do_not_count(broker, admin):
    topic = fresh("excluded")
    create(
        admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=20_000,
        millstream_backlog_exclude="audit-*",
    )  # fmt: skip
    commit(broker, "audit-1", topic, 0)
    source = producer(broker)
    send(source, topic, 50)
    assert source.flush(10) == 0 and counters(admin, topic)["blocked.requests"] == 0


def test_without_acknowledgements_the_bound_holds_too(broker, admin):
    topic = fresh("fire")
    create(admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=LIMIT)
    commit(broker, "slow", topic, 0)
    source = producer(broker, acks=0)
    send(source, topic, 200)
    wait_until(lambda: source.poll(0.05) is None or counters(admin, topic)["waiting.requests"] > 0, "an append waits")
    assert end(broker, topic)[1] * 10 * KIB <= LIMIT + 100 * KIB
    commit(broker, "slow", topic, 10**6)
    wait_until(lambda: end(broker, topic)[1] == 200, "the rest arrives")


def test_a_client_that_goes_away_leaves_nothing_behind(broker, admin):
    topic = fresh("gone")
    create(admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=20_000)
    commit(broker, "slow", topic, 0)
    source = producer(broker, **{"request.timeout.ms": 60_000})
    send(source, topic, 20)
    wait_until(lambda: source.poll(0.05) is None or counters(admin, topic)["waiting.requests"] > 0, "an append waits")
    before = end(broker, topic)[1]
    source.purge()
    source.close()
    wait_until(lambda: counters(admin, topic)["waiting.requests"] == 0, "nothing waits")
    assert end(broker, topic)[1] == before


def stored(broker, topic):
    """Bytes of the partition's segments."""
    total = 0
    for path in broker.folder.glob(f"topics/{topic}/0/*.log"):
        with contextlib.suppress(FileNotFoundError):  # gone this moment
            total += path.stat().st_size
    return total


def test_drop_is_a_ring_and_says_what_is_gone(broker, admin):
    topic = fresh("ring")
    create(admin, topic, millstream_overload="drop", retention_bytes=4 * LIMIT, max_message_bytes=100_000)
    reader = Consumer(
        {"bootstrap.servers": broker.address, "group.id": topic, "auto.offset.reset": "error", "fetch.wait.max.ms": 50}
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    source = producer(broker)
    send(source, topic, 10)
    source.flush(10)
    assert reader.poll(5).offset() == 0
    reader.pause([TopicPartition(topic, 0)])  # it stalls
    before = memory(broker)
    send(source, topic, 3000)
    assert source.flush(30) == 0
    # An append leaves what is over the bound to maintenance when that is at the partition in this moment.
    deadline = time.monotonic() + 10
    while (size := stored(broker, topic)) > 5 * LIMIT and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 4 * LIMIT <= size <= 5 * LIMIT
    start, stop = end(broker, topic)
    seen = counters(admin, topic)
    assert stop == 3010 and seen["dropped.records"] == start > 2000 and seen["dropped.bytes"] > 20_000_000
    assert memory(broker) - before < 40_000_000
    reader.seek(TopicPartition(topic, 0, 100))
    reader.resume([TopicPartition(topic, 0)])
    deadline = time.monotonic() + 10
    error = None
    while error is None and time.monotonic() < deadline:
        message = reader.poll(0.2)
        error = message.error() if message is not None and message.error() else None
    assert error is not None and error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    reader.close()


def test_buffer_keeps_everything(broker, admin):
    topic = fresh("kept")
    create(admin, topic)
    commit(broker, "slow", topic, 0)
    source = producer(broker)
    send(source, topic, 300)
    assert source.flush(10) == 0 and end(broker, topic) == (0, 300) and counters(admin, topic) == {}


def test_memory_stays_bounded_while_many_wait(broker, admin):
    topic = fresh("many")
    create(admin, topic, millstream_overload="backpressure", millstream_backlog_bytes=20_000)
    commit(broker, "slow", topic, 0)
    before = memory(broker)
    sources = [producer(broker, **{"request.timeout.ms": 5000, "message.timeout.ms": 6000}) for _ in range(20)]
    stop = threading.Event()

    def press(source):
        while not stop.is_set():
            try:
                source.produce(topic, VALUE)
            except BufferError:
                source.poll(0.1)
            if len(source) > 500:
                source.poll(0.1)

    threads = [threading.Thread(target=press, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    wait_until(lambda: counters(admin, topic)["waiting.requests"] >= 20, "many wait")
    highest = max(memory(broker) for _ in range(20) if not time.sleep(0.1))
    stop.set()
    for thread in threads:
        thread.join()
    for source in sources:
        source.purge()
    assert highest - before < 64 * 1024 * KIB + 40_000_000
