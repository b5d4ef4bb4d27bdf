"""Consumers come and go, in a group of the classic and in one of the new protocol: every record is read, and nothing stalls.

Members join, leave in order, and are killed at random times, while producers go on. Each message that was acknowledged must
be read by some member of each group, none may wait for longer than STALL_S, and at the end the committed offsets are the
log's ends.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.brokers import wait_until
from tests.torture.loads import QUICK, Broker, create, main, whole
from tests.torture.member import Member
from tests.torture.pause import GROUP, PARTITIONS, SETTINGS, Feed

MEMBERS = 3  # at most that many at once that leave in order, beside one that is killed
ROUND_S = 8.0
STALL_S = 20.0


class Group:
    """A group whose members come and go."""

    def __init__(self, address: str, topic: str, protocol: str, chance: Random) -> None:
        self.address, self.topic, self.protocol, self.chance = address, topic, protocol, chance
        self.config = {"group.id": f"churn-{protocol}", **GROUP[protocol]}
        self.seen: dict[str, float] = {}  # value -> when it was first read
        self.lives = 0
        self.errors: dict[str, int] = {}
        self.broken: list[str] = []

    def consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address, "auto.offset.reset": "earliest", "enable.auto.commit": False,
                **QUICK, **self.config,
            }
        )  # fmt: skip

    def live(self, seconds: float, until: threading.Event | None = None) -> None:
        """A member's life: reads, commits what it has read, leaves."""
        consumer = self.consumer()
        consumer.subscribe([self.topic])
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (until and until.is_set()):
            messages = [m for m in consumer.consume(200, 0.05) if m.error() is None]
            self.note([m.value().decode() for m in messages])
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:  # a rebalance under way: others read it again
                    name = error.args[0].name()
                    self.errors[name] = self.errors.get(name, 0) + 1
        consumer.close()
        self.lives += 1

    def note(self, values: list[str]) -> None:
        now = time.monotonic()
        for value in values:
            self.seen.setdefault(value, now)

    def come_and_go(self, stop: threading.Event, chance: Random) -> None:
        try:
            while not stop.is_set():
                self.live(chance.random() * 3)
                stop.wait(chance.random() / 2)
        except Exception as error:
            self.broken.append(f"{self.protocol}: {type(error).__name__}: {error}")

    def die(self, stop: threading.Event, chance: Random) -> None:
        """Members that are killed; what they have read and not committed is read again by others."""
        try:
            while not stop.is_set():
                member = Member(self.address)
                member.ask("subscribe", self.topic, self.config)
                member.tell("read", 60.0)
                stop.wait(chance.random() * 3)
                member.kill()
                self.lives += 1
        except Exception as error:
            self.broken.append(f"{self.protocol}: {type(error).__name__}: {error}")

    def start(self, stop: threading.Event) -> list[threading.Thread]:
        work = [self.come_and_go] * MEMBERS + [self.die]
        threads = [threading.Thread(target=each, args=(stop, Random(self.chance.random()))) for each in work]
        for thread in threads:
            thread.start()
        return threads


class Timed(Feed):
    """A feed that knows when each message was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        self.when: dict[str, float] = {}
        super().__init__(address, topic)

    def look(self) -> None:
        now = time.monotonic()
        for value in list(self.acknowledged):
            self.when.setdefault(value, now)


def waited(group: Group, feed: Timed) -> float:
    """How long the message that waited for longest did (or does)."""
    now = time.monotonic()
    return max((group.seen.get(value, now) - when for value, when in feed.when.items()), default=0.0)


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"
    broker = Broker(None, *SETTINGS).start(data)
    try:
        for turn in range(1, count + 1):
            topic = f"churn-{turn}"
            create(broker.address, topic, PARTITIONS)
            feed = Timed(broker.address, topic)
            groups = [Group(broker.address, topic, protocol, Random(chance.random())) for protocol in GROUP]
            stop = threading.Event()
            threads = [thread for group in groups for thread in group.start(stop)]
            deadline = time.monotonic() + ROUND_S
            while time.monotonic() < deadline:
                time.sleep(0.1)
                feed.look()
            stop.set()
            for thread in threads:
                thread.join()
            feed.end()
            feed.look()
            told = []
            for group in groups:
                finish(group, feed)
                longest = waited(group, feed)
                assert longest < STALL_S, f"{group.protocol}: a message waited for {longest:.1f} s"
                told.append(f"{group.protocol}: {group.lives} members, longest wait {longest:.1f} s")
            print(f"round {turn}: {len(feed.acknowledged)} messages; {'; '.join(told)}", flush=True)
    finally:
        broker.end()
    whole(data)


def finish(group: Group, feed: Timed) -> None:
    """A last member reads what is left; then everything has been read, and is committed."""
    assert not group.broken, group.broken
    done = threading.Event()
    thread = threading.Thread(target=group.live, args=(60.0, done))
    thread.start()
    watcher = group.consumer()
    ends: dict[int, int] = {}
    for index in range(PARTITIONS):
        ends[index] = watcher.get_watermark_offsets(TopicPartition(group.topic, index), timeout=10)[1]
    everything = [TopicPartition(group.topic, index) for index in range(PARTITIONS)]

    def finished() -> bool:
        there = {each.partition: each.offset for each in watcher.committed(everything, 10)}
        return there == ends and group.seen.keys() >= feed.acknowledged.keys()

    try:
        wait_until(finished, f"{group.protocol}: all is read and committed", 40)
    finally:
        done.set()
        thread.join()
        watcher.close()


if __name__ == "__main__":
    main(__doc__ or "", rounds, 2)
