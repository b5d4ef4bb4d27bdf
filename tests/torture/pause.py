"""SIGSTOP of clients: whoever comes back after others took over writes and commits nothing any more.

Each round, with pauses at random moments:

- a producer in a transaction is stopped, a second one takes its id over and commits; the first cannot end its transaction.
- a producer is stopped for longer than its transaction may last; readers of committed records go on, it cannot end it either.
- a group's member (classic, and of the new protocol) is stopped beyond its session; another one reads on and commits;
  the first one's commit is refused, committed offsets do not go back, and then both share the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.brokers import wait_until
from tests.torture.loads import QUICK, Broker, create, main, stored, whole
from tests.torture.member import Member

SETTINGS = (
    "group.min.session.timeout.ms=1000",
    "group.consumer.session.timeout.ms=1500",
    "group.consumer.min.session.timeout.ms=1000",
    "group.consumer.min.heartbeat.interval.ms=200",
    "group.consumer.heartbeat.interval.ms=300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=200",
)
# What a client that was fenced may be told.
FENCED = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "_STATE",
    "INVALID_TXN_STATE",
    "_PURGE_QUEUE",
    "UNKNOWN_PRODUCER_ID",
}
STALE = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "STALE_MEMBER_EPOCH",
    "FENCED_MEMBER_EPOCH",
    "REBALANCE_IN_PROGRESS",
    "_ASSIGNMENT_LOST",
}
PARTITIONS = 3
GROUP = {
    "classic": {"group.protocol": "classic", "session.timeout.ms": 1500, "heartbeat.interval.ms": 300},
    "consumer": {"group.protocol": "consumer"},
}


def committed_values(address: str, topic: str) -> list[str]:
    """What a reader of committed records finds in partition 0 up to its end."""
    return [data.decode() for _, data in stored(address, topic)[0]]


def fenced(address: str, turn: int, chance: Random) -> str:
    """Another producer takes the id over."""
    topic, name = f"fenced-{turn}", f"fenced-{turn}"
    create(address, topic)
    first, second = Member(address), Member(address)
    try:
        first.ask("transactional", name, 60_000)
        first.ask("begin")
        first.ask("send", topic, ["first"] * chance.randrange(1, 20))
        first.tell("send", topic, ["first"] * 20_000)  # stopped somewhere in the middle of this
        time.sleep(chance.random() * 0.3)
        first.stop()
        second.ask("transactional", name, 60_000)
        second.ask("begin")
        second.ask("send", topic, ["second"] * 10)
        if chance.random() < 0.5:  # comes back while the second one's transaction is open
            first.go_on()
        second.ask("commit")
        first.tell("commit")
        first.go_on()
        try:
            first.answer()
        except Exception as error:  # the send may already have been told
            assert str(error) in FENCED, error
        told = first.refused()
        assert told in FENCED, f"a producer that was fenced was told {told}"
        second.ask("begin")
        second.ask("send", topic, ["third"])
        second.ask("commit")
    finally:
        first.kill()
        second.kill()
    found = committed_values(address, topic)
    assert found == ["second"] * 10 + ["third"], (
        f"a reader of committed records sees {sorted(set(found))}: {len(found)}"
    )
    return f"fenced with {told}"


def overdue(address: str, turn: int, chance: Random) -> str:
    """A transaction lasts for too long."""
    topic, name = f"overdue-{turn}", f"overdue-{turn}"
    create(address, topic)
    first = Member(address)
    try:
        first.ask("transactional", name, 1000)
        first.ask("begin")
        first.ask("send", topic, ["first"] * 10)
        first.stop()
        begun = time.monotonic()
        plain = Producer({"bootstrap.servers": address, **QUICK})
        plain.produce(topic, "plain", partition=0)
        assert plain.flush(20) == 0
        found = committed_values(address, topic)
        waited = time.monotonic() - begun
        assert found == ["plain"], found
        time.sleep(chance.random())
        first.tell("commit")
        first.go_on()
        told = first.refused()
        assert told in FENCED, f"a producer whose transaction was over was told {told}"
    finally:
        first.kill()
    found = committed_values(address, topic)
    assert found == ["plain"], found
    return f"readers went on after {waited:.1f} s, {told}"


class Feed:
    """Numbers into a topic, until it ends."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic, self.sent = topic, 0
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, **QUICK})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for _ in range(5):
                value = str(self.sent)

                def told(error: object, message: object, value: str = value) -> None:
                    if error is None:
                        self.acknowledged[value] = (message.partition(), message.offset())  # type: ignore[attr-defined]

                self._producer.produce(self.topic, value, partition=self.sent % PARTITIONS, on_delivery=told)
                self.sent += 1
            self._producer.poll(0)
        self._producer.flush(30)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def nexts(read: list[list[object]]) -> list[tuple[int, int]]:
    """The next offsets after what was read."""
    found: dict[int, int] = {}
    for partition, offset, _ in read:
        found[partition] = offset + 1  # type: ignore[index,operator,assignment]
    return sorted(found.items())


def session(protocol: str) -> Callable[[str, int, Random], str]:
    """The scenario of a group's member."""

    def run(address: str, turn: int, chance: Random) -> str:
        topic = group = f"{protocol}-{turn}"
        create(address, topic, PARTITIONS)
        config = {"group.id": group, **GROUP[protocol]}
        watcher = Consumer({"bootstrap.servers": address, "group.id": group, **QUICK})
        everything = [TopicPartition(topic, index) for index in range(PARTITIONS)]

        def stored() -> dict[int, int]:
            return {each.partition: each.offset for each in watcher.committed(everything, 10)}

        first, second, feed = Member(address), Member(address), Feed(address, topic)
        seen: set[str] = set()

        def read(member: Member, seconds: float) -> list[tuple[int, int]]:
            found = member.ask("read", seconds)
            seen.update(value for _, _, value in found)
            return nexts(found)

        try:
            first.ask("subscribe", topic, config)
            wait_until(
                lambda: (mine := read(first, 0.3)) and (first.ask("store", mine, topic) or len(mine) == PARTITIONS),
                "the first reads all",
            )
            old = read(first, 0.2 + chance.random() / 2)  # read, and not committed
            old = old or list(stored().items())
            first.stop()
            paused = time.monotonic()
            second.ask("subscribe", topic, config)
            wait_until(
                lambda: len(mine := read(second, 0.3)) == PARTITIONS and (second.ask("store", mine, topic) or True),
                "the second takes over",
            )
            took = time.monotonic() - paused
            time.sleep(chance.random() / 2)
            later = stored()
            assert all(later[p] > o for p, o in old), f"{later} is not after {old}"
            first.tell("store", old, topic)
            first.go_on()
            told = first.refused()
            assert told in STALE, f"a member that was away was told {told}"
            back = {p: o for p, o in stored().items() if o < later[p]}
            assert not back, f"committed offsets went back from {later} to {back}"

            def shared() -> bool:
                for member in (first, second):
                    mine = read(member, 0.3)
                    if mine:
                        try:
                            member.ask("store", mine, topic)
                        except Exception as error:  # a rebalance under way
                            assert str(error) in STALE, error
                return all(member.ask("assigned") for member in (first, second))

            wait_until(shared, "both have partitions")
            feed.end()
            wait_until(lambda: shared() and seen >= set(feed.acknowledged), "everything is read")
        finally:
            feed.end()
            first.kill()
            second.kill()
            watcher.close()
        return f"{protocol}: taken over after {took:.1f} s, {told}, all of {len(feed.acknowledged)} read"

    return run


SCENARIOS = (fenced, overdue, session("classic"), session("consumer"))


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"
    broker = Broker(None, *SETTINGS).start(data)
    try:
        for turn in range(1, count + 1):
            told = [scenario(broker.address, turn, chance) for scenario in SCENARIOS]
            print(f"round {turn}: {'; '.join(told)}", flush=True)
    except KafkaException as error:
        raise AssertionError(f"a client failed: {error}") from error
    finally:
        broker.end()
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds, 2)
