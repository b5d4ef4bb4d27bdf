"""SIGKILL under transactions, plain producers and committing consumers; nothing acknowledged is lost, doubled or torn.

Each round kills the broker once in the middle, starts it, lets everybody finish, and then reads everything:

- transactions: each that was committed is there whole, once, in order; one that was aborted is not; one whose commit was
  not answered is there whole or not at all. `transform` reads `in` and writes `out` exactly once, offsets included.
- plain producers (no idempotence): what was acknowledged is where it was acknowledged.
- committed offsets never go back.
"""

from __future__ import annotations

import signal
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.torture.loads import QUICK, Broker, create, main, stored, whole

PARTITIONS = 3
WRITERS = 2
STEP_S = 60.0  # no call of a client takes as long, a restart of the broker included


def value(writer: int, transaction: int, index: int, chance: Random) -> bytes:
    """A record that says what it is and shows when a byte of it is wrong."""
    text = b"%d %d %d " % (writer, transaction, index) + bytes(chance.randrange(200))
    return b"%d " % zlib.crc32(text) + text


def parsed(data: bytes) -> tuple[int, int, int]:
    """Writer, transaction and index of a record."""
    check, text = data.split(b" ", 1)
    assert int(check) == zlib.crc32(text), f"a torn record: {data!r}"
    writer, transaction, index, _ = text.split(b" ", 3)
    return int(writer), int(transaction), int(index)


class Worker(Protocol):
    """Somebody who works on the broker until told to stop."""

    def run(self, stop: threading.Event) -> None: ...


class Writer:
    """A transactional producer: transactions of some records over all partitions; every seventh is aborted."""

    def __init__(self, address: str, number: int, chance: Random) -> None:
        self.address, self.number, self.chance = address, number, chance
        self.fate: dict[int, str] = {}  # transaction -> committed, aborted, unknown
        self.size: dict[int, int] = {}
        self.acknowledged: dict[tuple[int, int], tuple[int, int]] = {}  # (transaction, index) -> partition, offset
        self._producer: Producer | None = None

    def connect(self) -> Producer:
        """A new producer under the same id, which ends what the one before has left open."""
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.address, "transactional.id": f"writer-{self.number}", "linger.ms": 1,
                    "transaction.timeout.ms": 60_000, **QUICK,
                }
            )  # fmt: skip
            self._producer.init_transactions(STEP_S)
        return self._producer

    def run(self, stop: threading.Event) -> None:
        """Transactions until told to stop."""
        while not stop.is_set():
            number = len(self.fate)
            self.fate[number] = "unknown"
            self.size[number] = count = self.chance.randrange(1, 40)
            try:
                producer = self.connect()
                producer.begin_transaction()
                for index in range(count):
                    self.produce(producer, number, index)
                if self.chance.random() < 0.5:
                    producer.flush(STEP_S)
                if number % 7 == 6:
                    producer.abort_transaction(STEP_S)
                    self.fate[number] = "aborted"
                else:
                    producer.commit_transaction(STEP_S)
                    self.fate[number] = "committed"
            except KafkaException as error:
                self.give_up(error)

    def produce(self, producer: Producer, number: int, index: int) -> None:
        def told(error: object, message: object) -> None:
            if error is None:
                self.acknowledged[number, index] = (message.partition(), message.offset())  # type: ignore[attr-defined]

        data = value(self.number, number, index, self.chance)
        producer.produce("out", data, partition=index % PARTITIONS, on_delivery=told)

    def give_up(self, error: KafkaException) -> None:
        """After an error: abort what can be aborted; else the next transaction begins with a producer of its own."""
        told: KafkaError = error.args[0]
        assert self._producer is not None
        try:
            if told.txn_requires_abort():
                self._producer.abort_transaction(STEP_S)
                self.fate[len(self.fate) - 1] = "aborted"
                return
        except KafkaException:
            pass
        self._producer = None


class Transform:
    """Reads `in`, writes each number to `copied` in a transaction with its offset."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lowest: dict[int, int] = {}  # offsets that were committed for sure

    def run(self, stop: threading.Event) -> None:
        producer = Producer(
            {"bootstrap.servers": self.address, "transactional.id": "transform", "linger.ms": 1, **QUICK}
        )
        consumer = Consumer(
            {
                "bootstrap.servers": self.address, "group.id": "transform", "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "isolation.level": "read_committed", "session.timeout.ms": 6000, **QUICK,
            }
        )  # fmt: skip
        producer.init_transactions(STEP_S)
        consumer.subscribe(["in"])
        while not stop.is_set():
            messages = [m for m in consumer.consume(50, 0.1) if m.error() is None]
            if not messages:
                continue
            try:
                producer.begin_transaction()
                for message in messages:
                    producer.produce("copied", message.value(), partition=message.partition())
                positions = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), STEP_S)
                producer.commit_transaction(STEP_S)
                for position in positions:
                    if position.offset >= 0:
                        self.lowest[position.partition] = position.offset
            except KafkaException as error:
                told: KafkaError = error.args[0]
                if told.txn_requires_abort():
                    producer.abort_transaction(STEP_S)
                else:
                    producer = Producer(
                        {"bootstrap.servers": self.address, "transactional.id": "transform", "linger.ms": 1, **QUICK}
                    )
                    producer.init_transactions(STEP_S)
                # Where the transaction began again: from what is committed.
                for each in consumer.committed(consumer.assignment(), STEP_S):
                    consumer.seek(TopicPartition("in", each.partition, max(each.offset, 0)))
        consumer.close()


class Plain:
    """A producer without idempotence, which feeds `in`; a retry may double a message, and none that is acknowledged is lost."""

    def __init__(self, address: str) -> None:
        self.address, self.sent = address, 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": False, "acks": "all", "linger.ms": 1, **QUICK}
        )

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for _ in range(5):
                number = self.sent
                self.sent += 1

                def told(error: object, message: object, number: int = number) -> None:
                    if error is None:
                        self.acknowledged[number] = (message.partition(), message.offset())  # type: ignore[attr-defined]

                self.producer.produce("in", b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
            self.producer.poll(0.002)
        self.producer.flush(STEP_S)

    def check(self) -> str:
        found = {(p, o): int(v) for p, entries in stored(self.address, "in", PARTITIONS).items() for o, v in entries}
        for number, place in self.acknowledged.items():
            assert found.get(place) == number, f"{number} was acknowledged at {place}, where {found.get(place)} is"
        return f"{len(self.acknowledged)} plain"


class Committer:
    """Commits ever larger offsets of a group that nobody else uses, and looks what is committed."""

    def __init__(self, address: str) -> None:
        self.consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "committer", "enable.auto.commit": False, **QUICK}
        )
        self.sent = 0
        self.known = -1  # acknowledged or seen

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.sent += 1
            try:
                self.consumer.commit(offsets=[TopicPartition("in", 0, self.sent)], asynchronous=False)
                self.known = self.sent
                self.look()
            except KafkaException:
                time.sleep(0.02)

    def look(self) -> None:
        [found] = self.consumer.committed([TopicPartition("in", 0)], 20)
        assert self.known <= found.offset <= self.sent, f"committed {self.known}, and now it is {found.offset}"
        self.known = found.offset


def started(workers: Sequence[Worker], stop: threading.Event, broken: list[str]) -> list[threading.Thread]:
    """Threads for workers; what anybody raises is a broken promise, and is noted."""

    def guarded(worker: Worker) -> None:
        try:
            worker.run(stop)
        except Exception as error:
            broken.append(f"{type(worker).__name__}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(each,)) for each in workers]
    for thread in threads:
        thread.start()
    return threads


class World:
    """Everybody who works on the broker."""

    def __init__(self, address: str, chance: Random) -> None:
        self.address = address
        self.writers = [Writer(address, number, Random(chance.random())) for number in range(WRITERS)]
        self.transform, self.plain, self.committer = Transform(address), Plain(address), Committer(address)
        self.broken: list[str] = []

    def work(self, stop: threading.Event, *others: Worker) -> list[threading.Thread]:
        """Start everybody."""
        return started([*self.writers, self.transform, self.plain, self.committer, *others], stop, self.broken)

    def end(self) -> None:
        """End what a writer has left open, so that readers of committed records get to the end."""
        for writer in self.writers:
            writer.connect()

    def check(self) -> str:
        assert not self.broken, self.broken
        self.committer.look()
        return f"{self.check_transactions()}, {self.plain.check()}, {self.check_transform()}"

    def check_transactions(self) -> str:
        found = stored(self.address, "out", PARTITIONS)
        seen: dict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
        for partition, entries in found.items():
            last: dict[int, tuple[int, int]] = {}
            for offset, data in entries:
                writer, transaction, index = parsed(data)
                assert (transaction, index) not in seen[writer], f"writer {writer}: {transaction}/{index} is doubled"
                assert last.get(writer, (-1, -1)) < (transaction, index), (
                    f"writer {writer}: {transaction}/{index} is late"
                )
                last[writer] = (transaction, index)
                seen[writer][transaction, index] = (partition, offset)
        committed = 0
        for writer in self.writers:
            counts: dict[int, int] = defaultdict(int)
            for transaction, _ in seen[writer.number]:
                counts[transaction] += 1
            for transaction, fate in writer.fate.items():
                count, size = counts[transaction], writer.size[transaction]
                right = {"committed": {size}, "aborted": {0}, "unknown": {0, size}}[fate]
                assert count in right, (
                    f"writer {writer.number}: {count} of {size} records of {transaction}, which is {fate}"
                )
                committed += fate == "committed"
            for key, place in writer.acknowledged.items():
                there = seen[writer.number].get(key, place)
                assert there == place, f"writer {writer.number}: {key} was acknowledged at {place} and is at {there}"
        return f"{committed} transactions"

    def check_transform(self) -> str:
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "transform", **QUICK})
        committed = consumer.committed([TopicPartition("in", i) for i in range(PARTITIONS)], 20)
        consumer.close()
        source, copied = stored(self.address, "in", PARTITIONS), stored(self.address, "copied", PARTITIONS)
        for each in committed:
            upto = max(each.offset, 0)
            assert upto >= self.transform.lowest.get(each.partition, 0), "a committed offset went back"
            wanted = [data for offset, data in source[each.partition] if offset < upto]
            got = [data for _, data in copied[each.partition]]
            assert got == wanted, (
                f"partition {each.partition}: copied {len(got)}, expected {len(wanted)} in order, each once"
            )
        return f"{sum(map(len, copied.values()))} transformed"


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"
    broker = Broker()
    broker.start(data)
    for topic in ("in", "out", "copied"):
        create(broker.address, topic, PARTITIONS, segment_bytes=str(1 << 20))
    world, slowest = World(broker.address, chance), 0.0
    try:
        for turn in range(1, count + 1):
            stop = threading.Event()
            threads = world.work(stop)
            time.sleep(0.5 + chance.random() * 2)
            broker.end(signal.SIGKILL)
            broker.start()
            slowest = max(slowest, broker.recovery)
            time.sleep(0.5 + chance.random())
            stop.set()
            for thread in threads:
                thread.join()
            world.end()
            print(f"kill {turn}: {world.check()}; started in {broker.recovery:.2f} s", flush=True)
    finally:
        broker.end()
    whole(data)
    print(f"slowest start {slowest:.2f} s")


if __name__ == "__main__":
    main(__doc__ or "", rounds)
