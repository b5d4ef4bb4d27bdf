"""A mixed load for a long time: `python -m tests.torture.soak --minutes 30` prints the broker's memory and its slope.

Everything that the load makes is bounded by retention, deletion or reuse, so memory must level off: the slope over the
last two thirds must stay under MOST_MIB_PER_HOUR, or, in a short run, what it grew by there under SLACK_MIB.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.protocol.messages.metadata import MetadataRequest
from tests.broker.wire import Wire
from tests.torture.garbage import Watch
from tests.torture.loads import QUICK, Broker, create, whole
from tests.torture.pause import GROUP

MOST_MIB_PER_HOUR = 8.0
SLACK_MIB = 4.0
SAMPLE_S = 1.0
TELL_S = 60.0
MIB = 1 << 20
SETTINGS = (
    "auto.create.topics.enable=false",
    "log.retention.check.interval.ms=1000",
    "log.cleaner.backoff.ms=1000",
    "offsets.topic.segment.bytes=1048576",
    "transaction.state.log.segment.bytes=1048576",
    "group.consumer.min.session.timeout.ms=1000",
    "group.min.session.timeout.ms=1000",
)


class Load:
    """Everybody who works on the broker: each method is one, again and again until told to stop."""

    def __init__(self, address: str, seed: int) -> None:
        self.address, self.seed = address, seed
        self.stop = threading.Event()
        self.turns: dict[str, int] = {}
        self.broken: list[str] = []
        self.threads: list[threading.Thread] = []
        for work in (
            self.stream,
            self.transactions,
            self.changelog,
            self.classic,
            self.modern,
            self.topics,
            self.connections,
        ):
            self.threads.append(threading.Thread(target=self._run, args=(work,)))
        for thread in self.threads:
            thread.start()

    def _run(self, work: Callable[[], Callable[[], None]]) -> None:
        name = work.__name__
        try:
            again = work()
            while not self.stop.is_set():
                again()
                self.turns[name] = self.turns.get(name, 0) + 1
        except Exception as error:
            self.broken.append(f"{name}: {type(error).__name__}: {error}")

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def stream(self) -> Callable[[], None]:
        """A steady stream, some codecs, beyond retention."""
        producers = [
            Producer({"bootstrap.servers": self.address, "compression.type": codec, "linger.ms": 5, **QUICK})
            for codec in ("none", "lz4", "zstd")
        ]

        def again() -> None:
            for producer in producers:
                for _ in range(20):
                    producer.produce("stream", bytes(500))
                producer.poll(0)
            self.stop.wait(0.05)

        return again

    def transactions(self) -> Callable[[], None]:
        """Transactions, every fifth aborted, under one id."""
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": "soak", **QUICK})
        producer.init_transactions(20)
        count = 0

        def again() -> None:
            nonlocal count
            count += 1
            producer.begin_transaction()
            for _ in range(10):
                producer.produce("stream", bytes(100))
            if count % 5:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
            self.stop.wait(0.05)

        return again

    def changelog(self) -> Callable[[], None]:
        """A thousand keys of a compacted topic."""
        producer, chance = Producer({"bootstrap.servers": self.address, "linger.ms": 5, **QUICK}), Random(self.seed)

        def again() -> None:
            for _ in range(50):
                producer.produce("changelog", chance.randbytes(200), b"%d" % chance.randrange(1000))
            producer.poll(0)
            self.stop.wait(0.05)

        return again

    def group(self, protocol: str) -> Callable[[], None]:
        """Members of a group that come for some seconds, read and commit."""

        def again() -> None:
            consumer = Consumer(
                {
                    "bootstrap.servers": self.address,
                    "group.id": f"soak-{protocol}",
                    "auto.offset.reset": "latest",
                    **QUICK,
                    **GROUP[protocol],
                }
            )
            consumer.subscribe(["stream"])
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and not self.stop.is_set():
                if any(m.error() is None for m in consumer.consume(500, 0.1)):
                    with contextlib.suppress(KafkaException):  # a rebalance under way
                        consumer.commit(asynchronous=False)
            consumer.close()

        return again

    def classic(self) -> Callable[[], None]:
        return self.group("classic")

    def modern(self) -> Callable[[], None]:
        return self.group("consumer")

    def topics(self) -> Callable[[], None]:
        """Topics that are made, written, read and deleted."""
        admin = AdminClient({"bootstrap.servers": self.address, **QUICK})
        producer = Producer({"bootstrap.servers": self.address, **QUICK})
        reader = Consumer({"bootstrap.servers": self.address, "group.id": "reader", **QUICK})

        def send(topic: str) -> None:
            until = time.monotonic() + 20
            while True:
                try:
                    return producer.produce(topic, b"x", partition=0)
                except KafkaException as error:  # it may have seen that the topic was gone, and asks again only later
                    if error.args[0].code() != KafkaError._UNKNOWN_TOPIC or time.monotonic() > until:
                        raise
                    producer.poll(0.1)

        def again() -> None:
            create(self.address, "short", 3)
            send("short")
            assert producer.flush(20) == 0
            reader.assign([TopicPartition("short", 0, 0)])
            reader.consume(1, 5)
            reader.unassign()
            admin.delete_topics(["short"])["short"].result(20)
            self.stop.wait(0.5)

        return again

    def connections(self) -> Callable[[], None]:
        """Connections that come with a name of their own, ask and go."""
        chance = Random(self.seed)

        def again() -> None:
            with Wire(self.address, f"visitor-{chance.randrange(10**9)}") as wire:
                wire.ask(MetadataRequest(None), 12)
            self.stop.wait(0.02)

        return again


def slope(samples: list[tuple[float, float]]) -> float:
    """MiB per hour by least squares over the last two thirds of (seconds, MiB)."""
    late = samples[len(samples) // 3 :]
    return statistics.linear_regression([t for t, _ in late], [m for _, m in late]).slope * 3600


def soak(folder: Path, minutes: float, seed: int) -> None:
    data = folder / "data"
    broker = Broker(None, *SETTINGS).start(data)
    create(broker.address, "stream", 3, retention_bytes=str(4 * MIB), segment_bytes=str(MIB))
    create(
        broker.address, "changelog", cleanup_policy="compact", segment_bytes=str(MIB), min_cleanable_dirty_ratio="0.1"
    )
    watch, load = Watch(broker, "stream"), Load(broker.address, seed)
    begun, told, samples = time.monotonic(), 0.0, []
    try:
        while (now := time.monotonic() - begun) < minutes * 60:
            time.sleep(SAMPLE_S)
            samples.append((now, watch.memory()))
            assert not load.broken, load.broken
            assert watch.error is None, watch.error
            if now - told >= TELL_S:
                told = now
                print(f"{now / 60:5.1f} min  {samples[-1][1]:6.1f} MiB  {load.turns}", flush=True)
    finally:
        load.end()
        watch.end()
        broker.end()
    assert not load.broken and watch.error is None, (load.broken, watch.error)
    whole(data)
    found = slope(samples)
    grown = found * minutes / 60 * 2 / 3
    print(
        f"memory {samples[len(samples) // 3][1]:.1f} MiB after a third, {samples[-1][1]:.1f} at the end: {found:+.1f} MiB/h; "
        f"slowest answer {watch.slowest * 1000:.0f} ms",
        flush=True,
    )
    assert found < MOST_MIB_PER_HOUR or grown < SLACK_MIB, f"memory grows by {found:.1f} MiB/h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with TemporaryDirectory(prefix="torture-") as folder:
        soak(Path(folder), options.minutes, options.seed)
    print(f"{options.minutes:g} minutes: every promise kept", flush=True)


if __name__ == "__main__":
    main()
