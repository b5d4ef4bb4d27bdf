"""SIGKILL under load: nothing acknowledged is lost, doubled or reordered; committed offsets never go back; clients go on."""

import random
import signal
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.broker.serving import Process
from tests.broker.wire import Wire

PARTITIONS = 3
KILLS = 4


class Load:
    """An idempotent producer that numbers its messages per partition, and notes what was acknowledged where."""

    def __init__(self, address: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "delivery.timeout.ms": 60_000,
            }
        )
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.failed: list[str] = []
        self.sent = [0] * PARTITIONS
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        chance = random.Random(0)
        while not self.stop.is_set():
            for _ in range(20):
                self.one(chance.randrange(PARTITIONS))
            self.producer.poll(0.001)
        self.producer.flush(60)

    def one(self, partition: int) -> None:
        number = self.sent[partition]
        self.sent[partition] += 1

        def delivered(error, message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged[partition][number] = message.offset()

        self.producer.produce("load", str(number), partition=partition, on_delivery=delivered)


def committed(address: str) -> dict[int, int]:
    topics = [OffsetFetchRequestTopics("load", partition_indexes=list(range(PARTITIONS)))]
    with Wire(address) as wire:
        answer = wire.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("watchers", topics=topics)]), 8)
    return {p.partition_index: p.committed_offset for p in answer.groups[0].topics[0].partitions}


def stored(address: str) -> list[list[int]]:
    """Every number in every partition, in the log's order."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": False})
    out = []
    for partition in range(PARTITIONS):
        _, end = consumer.get_watermark_offsets(TopicPartition("load", partition), timeout=10)
        consumer.assign([TopicPartition("load", partition, 0)])
        numbers: list[int] = []
        deadline = time.monotonic() + 30
        while len(numbers) < end and time.monotonic() < deadline:
            numbers += [int(m.value()) for m in consumer.consume(5000, 0.5)]
        out.append(numbers)
    consumer.close()
    return out


@pytest.mark.system
def test_kill_9_under_load(tmp_path):
    with Process(tmp_path / "data", "group.min.session.timeout.ms=1000") as broker:
        with Wire(broker.address) as wire:
            wire.ask(CreateTopicsRequest([CreatableTopic("load", PARTITIONS, 1)], 5000))
        load = Load(broker.address)
        load.thread.start()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "watchers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
            }
        )
        consumer.subscribe(["load"])
        seen: dict[int, int] = {}
        acknowledged: dict[int, int] = {}
        recoveries = []
        chance = random.Random(1)
        for round_number in range(KILLS):
            until = time.monotonic() + 0.7 + chance.random()
            progress = 0
            while time.monotonic() < until or not progress:
                assert time.monotonic() < until + 30, "the consumer does not go on"
                messages = [m for m in consumer.consume(500, 0.1) if m.error() is None]
                for message in messages:
                    expected = seen.get(message.partition())
                    assert expected is None or message.offset() <= expected, "an offset was skipped"
                    seen[message.partition()] = max(message.offset() + 1, expected or 0)
                progress += len(messages)
                if messages:
                    try:
                        for place in consumer.commit(asynchronous=False):
                            if place.error is None and place.offset >= 0:
                                acknowledged[place.partition] = max(place.offset, acknowledged.get(place.partition, 0))
                    except Exception as e:  # a commit without an answer counts for nothing
                        assert "commit" in str(e).lower() or "broker" in str(e).lower() or "_" in str(e)
            broker.end(signal.SIGKILL)
            begin = time.monotonic()
            broker.start()
            recoveries.append(time.monotonic() - begin)
            now = committed(broker.address)
            for partition, offset in acknowledged.items():
                assert now[partition] >= offset, f"round {round_number}: a committed offset went back"
        load.stop.set()
        load.thread.join(90)
        assert not load.thread.is_alive()
        consumer.close()
        assert load.failed == []
        numbers = stored(broker.address)
        for partition in range(PARTITIONS):
            assert numbers[partition] == list(range(load.sent[partition])), f"partition {partition}"
            for number, offset in load.acknowledged[partition].items():
                assert numbers[partition][offset] == number
        print(f"{sum(load.sent)} messages, {KILLS} kills, ready again in {max(recoveries):.2f} s at most")


def transactions(address: str, stop: threading.Event, committed_numbers: list[int], aborted: list[int]) -> None:
    """Numbered messages in transactions of three, every third one aborted; a fresh producer after each failure."""
    number, producer = 0, None
    while not stop.is_set():
        try:
            if producer is None:
                options = {"bootstrap.servers": address, "transactional.id": "killed", "linger.ms": 0}
                producer = Producer({**options, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100})
                producer.init_transactions(20)
            numbers = [number, number + 1, number + 2]
            number += 3
            producer.begin_transaction()
            for each in numbers:
                producer.produce("killed", str(each), partition=each % PARTITIONS)
            if number % 9 == 0:
                producer.abort_transaction(20)
                aborted += numbers
            else:
                producer.commit_transaction(20)
                committed_numbers += numbers
        except KafkaException:  # its outcome is unknown; the next producer fences it
            producer = None


@pytest.mark.system
def test_kill_9_under_transactions(tmp_path):
    done: list[int] = []
    aborted: list[int] = []
    with Process(tmp_path / "data") as broker:
        with Wire(broker.address) as wire:
            wire.ask(CreateTopicsRequest([CreatableTopic("killed", PARTITIONS, 1)], 5000))
        stop = threading.Event()
        thread = threading.Thread(target=transactions, args=(broker.address, stop, done, aborted))
        thread.start()
        chance = random.Random(2)
        for _ in range(KILLS):
            before = len(done)
            deadline = time.monotonic() + 40
            while len(done) < before + 30 and time.monotonic() < deadline:
                stop.wait(0.01)
            assert len(done) >= before + 30, "the producer does not go on"
            stop.wait(chance.random() / 5)
            broker.end(signal.SIGKILL)
            broker.start()
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
        finish = Producer({"bootstrap.servers": broker.address, "transactional.id": "killed"})
        finish.init_transactions(20)  # whatever was in doubt is settled now
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition("killed", p, 0) for p in range(PARTITIONS)])
        seen: list[int] = []
        ends = 0
        deadline = time.monotonic() + 30
        while ends < PARTITIONS and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                ends += 1
            else:
                seen.append(int(message.value()))
        consumer.close()
        assert ends == PARTITIONS, "a partition's end is not readable: a transaction hangs"
        assert len(seen) == len(set(seen)), "a message is there twice"
        assert set(done) <= set(seen), "a committed transaction is lost"
        assert not set(aborted) & set(seen), "an aborted transaction is visible"
        for number in seen:  # all of a transaction or nothing
            first = number - number % 3
            assert {first, first + 1, first + 2} <= set(seen)
