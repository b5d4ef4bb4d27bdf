"""Ordinary clients against the real broker: confluent-kafka's producer, consumer, transactions and admin."""

import time
import uuid

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec


@pytest.fixture
def topic():
    return f"t-{uuid.uuid4().hex[:8]}"


def produce(broker, topic, values, **options):
    producer = Producer({"bootstrap.servers": broker.address, **options})
    for value in values:
        producer.produce(topic, str(value), key=str(value))
    assert producer.flush(20) == 0


def consume(broker, topic, count, seconds=15, **options):
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            **options,
        }
    )
    consumer.subscribe([topic])
    out = []
    deadline = time.monotonic() + seconds
    while len(out) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            out.append(message.value().decode())
    consumer.close()
    return out


def test_a_group_reads_what_was_produced_and_goes_on_where_it_committed(broker, topic):
    produce(broker, topic, range(100), **{"enable.idempotence": True})
    assert sorted(map(int, consume(broker, topic, 60, **{"group.id": topic}))) == list(range(60))
    assert sorted(map(int, consume(broker, topic, 40, **{"group.id": topic}))) == list(range(60, 100))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(broker, topic, codec):
    produce(broker, topic, range(200), **{"compression.type": codec})
    assert consume(broker, topic, 200) == [str(i) for i in range(200)]


def test_a_waiting_consumer_sees_an_event_within_milliseconds(broker, topic):
    produce(broker, topic, ["first"])
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 10
    while consumer.poll(0.1) is None and time.monotonic() < deadline:
        pass
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    took = []
    for _ in range(10):
        begin = time.monotonic()
        producer.produce(topic, "x")
        producer.poll(0)
        assert consumer.poll(5) is not None
        took.append(time.monotonic() - begin)
    consumer.close()
    assert sorted(took)[5] < 0.1  # about 2 ms on a quiet machine; a poll's interval would be 500


def test_consumers_that_wait_cost_nothing(broker, topic):
    produce(broker, topic, ["first"])
    # They ask twice a second, as clients do; nobody polls in the broker.
    options = {"bootstrap.servers": broker.address, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 500}
    consumers = [Consumer({**options, "group.id": f"{topic}-{i}"}) for i in range(10)]
    for consumer in consumers:
        consumer.assign([TopicPartition(topic, 0, 0)])
    assert all(consumer.poll(10) is not None for consumer in consumers)
    process = psutil.Process(broker.popen.pid)

    def spent():
        return sum(process.cpu_times()[:2])

    before = spent()
    time.sleep(4)
    cost = (spent() - before) / 4
    for consumer in consumers:
        consumer.close()
    assert cost < 0.05  # of one core for all ten; measured: 0.005


def test_transactions(broker, topic):
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(10)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, str(number))
        if number % 2:
            producer.commit_transaction(10)
        else:
            producer.flush(10)
            producer.abort_transaction(10)
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(10)
    assert consume(broker, topic, 2, **{"isolation.level": "read_committed"}) == ["1", "3"]
    assert len(consume(broker, topic, 5, **{"isolation.level": "read_uncommitted"})) == 5
    second = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    second.init_transactions(10)  # fences the first and aborts what it left open
    with pytest.raises(KafkaException):
        producer.commit_transaction(10)


def test_offsets_in_a_transaction(broker, topic):
    produce(broker, topic, range(10))
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(10)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    got = []
    while len(got) < 10:
        got += consumer.consume(10, 1)
    for commit in (False, True):
        producer.begin_transaction()
        producer.produce(topic + "-out", "x")
        places = [TopicPartition(topic, 0, 10 if commit else 5)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 10)
        (producer.commit_transaction if commit else producer.abort_transaction)(10)
        [place] = consumer.committed([TopicPartition(topic, 0)], 10)
        assert place.offset == (10 if commit else -1001)
    consumer.close()


def test_admin(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1000"})])[topic].result(10)
    with pytest.raises(KafkaException, match="already exists"):
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(10)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
    described = admin.describe_configs([ConfigResource("topic", topic)])
    [configs] = [f.result(10) for f in described.values()]
    assert configs["retention.ms"].value == "1000"
    assert not configs["retention.ms"].is_default
    produce(broker, topic, range(50))
    ends = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(4)})
    assert sum(f.result(10).offset for f in ends.values()) == 50
    assert len(admin.list_topics(topic, 10).topics[topic].partitions) == 4
    admin.delete_topics([topic])[topic].result(10)
    assert topic not in admin.list_topics(timeout=10).topics


def test_durability_commit_is_acknowledged(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, 1, config={"flush.messages": "1"})])[topic].result(10)
    produce(broker, topic, range(300), **{"linger.ms": 0, "batch.num.messages": 10})
    assert len(consume(broker, topic, 300)) == 300
