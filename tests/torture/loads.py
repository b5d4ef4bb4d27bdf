"""What the commands share: arguments, a broker of their own, a load that notes what was acknowledged and seen."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.log import verify
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.serving import Process
from tests.broker.wire import Wire

# For clients of a broker that goes and comes back. librdkafka's own recovery of its metadata may take most of a minute.
QUICK = {
    "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0, "metadata.recovery.strategy": "none",
}  # fmt: skip


def main(description: str, rounds: Callable[[Path, int, Random], None], default: int = 5) -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=default)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with TemporaryDirectory(prefix="torture-") as folder:
        rounds(Path(folder), options.rounds, Random(options.seed))
    print(f"{options.rounds} rounds: every promise kept", flush=True)


class Broker(Process):
    """A broker that is killed and started again, perhaps over another folder; keeps its port."""

    def __init__(self, environment: dict[str, str] | None = None, *settings: str) -> None:
        super().__init__(Path("unset"), *settings)  # start names it
        self.environment = environment or {}
        self.recovery = 0.0  # seconds from the command to its readiness

    def start(self, folder: Path | None = None) -> Broker:
        begun = time.monotonic()
        if folder is not None:
            self.folder, self.log = folder, folder.with_suffix(".stderr")
        super().start()
        self.recovery = time.monotonic() - begun
        return self

    def died(self, seconds: float) -> None:
        """Wait until the broker has killed itself."""
        assert self.popen is not None
        self.popen.wait(seconds)
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def create(address: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Make a topic."""
    admin = AdminClient({"bootstrap.servers": address, **QUICK})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, config=settings)])[topic].result(20)


def stored(
    address: str, topic: str, partitions: int = 1, *, committed: bool = True
) -> dict[int, list[tuple[int, bytes]]]:
    """Offsets and values that a reader (of committed records) finds, by partition; it must get to the log's end."""
    with Wire(address) as wire:
        asked = [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
        [answer] = wire.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(topic, asked)]), 7).topics
        ends = {part.partition_index: part.offset for part in answer.partitions}
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "checker", "enable.partition.eof": True, **QUICK,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(partitions)}
    deadline = time.monotonic() + 60
    while ends:
        assert time.monotonic() < deadline, f"{topic}: a reader of committed records does not get to {ends}"
        for message in consumer.consume(1000, 0.1):
            error, index = message.error(), message.partition()
            if error is None:
                found[index].append((message.offset(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends.get(index, 0):
                ends.pop(index, None)
    consumer.close()
    return found


class Load:
    """A producer that numbers its messages, and a consumer of what can be seen; both go on over restarts."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._address = address
        self._producer = Producer(
            {
                "bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0,
            }
        )  # fmt: skip
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            for _ in range(20):
                number = self.sent
                self.sent += 1

                def told(error: object, message: object, number: int = number) -> None:
                    if error is None:
                        self.acknowledged[number] = message.offset()  # type: ignore[attr-defined]
                    else:
                        self.failed.append(str(error))

                self._producer.produce(self.topic, b"%d " % number + bytes(number % 300), on_delivery=told)
            self._producer.poll(0.005)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address, "group.id": "seer", "fetch.wait.max.ms": 50, "log_level": 0,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.05):
                if message.error() is None:
                    number = int(message.value().split()[0])
                    before = self.seen.setdefault(message.offset(), number)
                    assert before == number, f"offset {message.offset()} was {before} and is {number}"
        consumer.close()

    def wait(self, more: int) -> None:
        """Until so many more have been acknowledged."""
        wanted, deadline = len(self.acknowledged) + more, time.monotonic() + 60
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline and not self.failed, f"the producer is stuck: {self.failed[:3]}"
            time.sleep(0.005)

    def end(self) -> None:
        """Stop, and wait for what is under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._producer.flush(20)

    def check(self) -> int:
        """Everything acknowledged and everything seen is there, once and in order; how many records there are."""
        acknowledged, seen = dict(self.acknowledged), dict(self.seen)  # more may come while this reads
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": "checker", **QUICK})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: dict[int, int] = {}
        _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=20)
        ended = end == 0
        deadline = time.monotonic() + 60
        while not ended:
            assert time.monotonic() < deadline, "reading everything takes more than a minute"
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    found[message.offset()] = int(message.value().split()[0])
                    ended = ended or message.offset() >= end - 1
        consumer.close()
        for number, offset in acknowledged.items():
            assert found.get(offset) == number, f"acknowledged message {number} at {offset}: found {found.get(offset)}"
        for offset, number in seen.items():
            assert found.get(offset) == number, f"a consumer saw {number} at {offset}: found {found.get(offset)}"
        numbers = [found[offset] for offset in sorted(found)]
        assert numbers == sorted(set(numbers)), "messages are doubled or out of order"
        return len(found)


def whole(folder: Path) -> None:
    """Nothing in the folder is damaged."""
    damage = verify(folder)
    assert damage == [], damage
