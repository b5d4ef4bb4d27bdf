"""Durability `commit` through a real client: what is acknowledged and shown has been synced, and everybody is woken."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

COMMIT = {"millstream.durability": "commit"}


@pytest.fixture
def topic(broker, request):
    name = request.node.name.replace("[", "-").replace("]", "")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, config=COMMIT)])[name].result(10)
    return name


def reader(broker, topic, **more):
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": topic, "fetch.wait.max.ms": 5000, **more})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_a_waiting_consumer_is_woken(broker, topic, acks):
    consumer = reader(broker, topic)
    producer = Producer({"bootstrap.servers": broker.address, "acks": acks})
    try:
        for i in range(20):
            producer.produce(topic, str(i))
            assert producer.flush(10) == 0
            message = consumer.poll(4)
            assert message is not None and message.error() is None and message.value() == str(i).encode()
    finally:
        consumer.close()
    other = Consumer({"bootstrap.servers": broker.address, "group.id": topic})
    assert other.get_watermark_offsets(TopicPartition(topic, 0), timeout=5) == (0, 20)
    other.close()


def test_a_transaction_is_shown_after_its_marker(broker, topic):
    consumer = reader(broker, topic, **{"isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(10)
    try:
        for i in range(3):
            producer.begin_transaction()
            producer.produce(topic, str(i))
            producer.commit_transaction(10)
            message = consumer.poll(4)
            assert message is not None and message.value() == str(i).encode()
    finally:
        consumer.close()
