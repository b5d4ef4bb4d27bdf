"""Real consumers are restarted one by one with the other group protocol, there and back, while events come: none is missed."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.serving import Process

pytestmark = pytest.mark.system
PARTITIONS = 4
SECONDS = 30.0


class Rolling:
    """A group of two, events that are sent all the time, and what the group has read."""

    def __init__(self, address: str, strategy: str) -> None:
        self.address, self.strategy = address, strategy
        self.admin = AdminClient({"bootstrap.servers": address})
        self.admin.create_topics([NewTopic("events", PARTITIONS, 1)])["events"].result(10)
        self.producer = Producer({"bootstrap.servers": address})
        self.members: list[Consumer] = []
        self.sent, self.read = 0, {}

    def start(self, protocol: str, instance: str | None = None) -> Consumer:
        config = {"bootstrap.servers": self.address, "group.id": "g", "auto.offset.reset": "earliest"}
        config |= {"group.protocol": protocol, "enable.auto.commit": True, "auto.commit.interval.ms": 200}
        if protocol == "classic":
            config |= {"partition.assignment.strategy": self.strategy, "heartbeat.interval.ms": 200}
        if instance:
            config["group.instance.id"] = instance
        consumer = Consumer(config)
        consumer.subscribe(["events"])
        self.members.append(consumer)
        return consumer

    def end(self, consumer: Consumer) -> None:
        self.members.remove(consumer)
        consumer.close()

    def turn(self) -> None:
        """Send one event, and let everybody read."""
        self.producer.produce("events", str(self.sent).encode(), partition=self.sent % PARTITIONS)
        self.producer.poll(0)
        self.sent += 1
        for member in list(self.members):
            for message in member.consume(100, 0.02):
                assert message.error() is None, message.error()
                number = int(message.value())
                self.read[number] = self.read.get(number, 0) + 1

    def until_shared(self) -> None:
        """Until each member has its share and events arrive from all partitions."""
        deadline = time.monotonic() + SECONDS
        want = [PARTITIONS // len(self.members)] * len(self.members)
        while [len(m.assignment()) for m in self.members] != want:
            assert time.monotonic() < deadline, [m.assignment() for m in self.members]
            self.turn()
        first = self.sent
        while not all(first + partition in self.read for partition in range(PARTITIONS)):
            assert time.monotonic() < deadline, f"not all of {first} to {first + PARTITIONS - 1} are read"
            self.turn()

    def kind(self) -> str:
        [group] = self.admin.list_consumer_groups().result(10).valid
        return group.type.name

    def missing(self) -> list[int]:
        self.producer.flush(10)
        deadline = time.monotonic() + SECONDS
        while len(self.read) < self.sent and time.monotonic() < deadline:
            for member in self.members:
                for message in member.consume(100, 0.05):
                    number = int(message.value())
                    self.read[number] = self.read.get(number, 0) + 1
        return [number for number in range(self.sent) if number not in self.read]


@pytest.fixture
def broker(tmp_path):
    with Process(
        tmp_path / "data", "group.consumer.min.heartbeat.interval.ms=200", "group.consumer.heartbeat.interval.ms=200"
    ) as process:
        yield process


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("static", [False, True])
def test_consumers_are_restarted_with_the_other_protocol_and_back(broker, strategy, static):
    group = Rolling(broker.address, strategy)
    names = ["one", "two"] if static else [None, None]
    for name in names:
        group.start("classic", name)
    group.until_shared()
    assert group.kind() == "CLASSIC"
    for protocol, kinds in (("consumer", ["CONSUMER", "CONSUMER"]), ("classic", ["CONSUMER", "CLASSIC"])):
        for number, kind in enumerate(kinds):
            group.end(group.members[0])
            group.start(protocol, names[number])
            group.until_shared()
            assert group.kind() == kind
    assert group.missing() == []
    twice = sum(times - 1 for times in group.read.values())
    assert twice <= group.sent // 2  # what was read and not yet committed when members changed
    for member in list(group.members):
        group.end(member)
