"""The power is cut under everything at once: transactions, groups, compaction and an archive, on topics of durability `commit`.

What each cut leaves is what was synced, and sometimes anything of the rest (forgetful.py), the archive's folder included, as on
another disk that loses its power as well. After each: transactions and their offsets as `transactions` promises, so no
committed offset goes back and each transaction is there whole or not at all; in the compacted topic each key has the latest
value that was acknowledged, or a later one; the archived topic is read from its beginning without a gap. `__consumer_offsets`
and `__transaction_state` are `os` or, in some runs, `commit` like the rest.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

from confluent_kafka import Producer

from tests.torture.forgetful import Disk
from tests.torture.loads import QUICK, Broker, create, main, stored, whole
from tests.torture.newer import Newer
from tests.torture.transactions import PARTITIONS, World, Writer, parsed, value

KEYS = 200
MIB = 1 << 20
SETTINGS = (
    "log.cleaner.backoff.ms=200",
    "log.retention.check.interval.ms=200",
)


class Changelog:
    """Rising numbers under a few keys of a compacted topic."""

    def __init__(self, address: str, chance: Random) -> None:
        self.address, self.chance = address, chance
        self.sent = 0
        self.acknowledged: dict[bytes, int] = {}
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2, **QUICK})

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for _ in range(20):
                self.sent += 1
                key, number = b"%d" % self.chance.randrange(KEYS), self.sent

                def told(error: object, _: object, key: bytes = key, number: int = number) -> None:
                    if error is None:
                        self.acknowledged[key] = max(number, self.acknowledged.get(key, 0))

                self._producer.produce("changelog", b"%s %d " % (key, number) + bytes(300), key, on_delivery=told)
            self._producer.poll(0.005)
        self._producer.flush(60)

    def check(self) -> str:
        latest: dict[bytes, int] = {}
        records = stored(self.address, "changelog")[0]
        for _, data in records:
            key, number, _ = data.split(b" ", 2)
            assert int(number) > latest.get(key, 0), f"key {key!r}: {number!r} comes after {latest[key]}"
            latest[key] = int(number)
        for key, number in self.acknowledged.items():
            assert latest.get(key, 0) >= number, (
                f"key {key!r}: {number} was acknowledged, the latest is {latest.get(key)}"
            )
        assert len(records) <= self.sent
        return f"{len(self.acknowledged)} keys in {len(records)} of {self.sent} records"


class History:
    """Numbers into a topic of which most is in an archive."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent = 0
        self.acknowledged: dict[int, int] = {}
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2, **QUICK})

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for _ in range(20):
                number = self.sent
                self.sent += 1

                def told(error: object, message: object, number: int = number) -> None:
                    if error is None:
                        self.acknowledged[number] = message.offset()  # type: ignore[attr-defined]

                self._producer.produce("history", b"%d " % number + bytes(2000), on_delivery=told)
            self._producer.poll(0.01)
        self._producer.flush(60)

    def check(self) -> str:
        records = stored(self.address, "history")[0]
        assert [offset for offset, _ in records] == list(range(len(records))), "the history has a gap"
        numbers = [int(data.split(b" ", 1)[0]) for _, data in records]
        assert numbers == sorted(set(numbers)), "the history is doubled or out of order"
        for number, offset in self.acknowledged.items():
            assert offset < len(numbers) and numbers[offset] == number, f"{number} was acknowledged at {offset}"
        return f"{len(records)} of a history"


class Mixed(Writer):
    """Transactions over a topic that is `commit` and one that is not: the commit of one that no cut met syncs both."""

    def __init__(self, address: str, number: int, chance: Random) -> None:
        super().__init__(address, number, chance)
        self.cuts = 0
        self._begun: dict[int, int] = {}  # transaction -> the cuts before it
        self._kept: set[int] = set()  # transactions that began and ended between two cuts

    def produce(self, producer: Producer, number: int, index: int) -> None:
        self._begun.setdefault(number, self.cuts)
        topic = "safe" if index % 2 else "loose"
        producer.produce(topic, value(self.number, number, index, self.chance), partition=index % PARTITIONS)

    def note(self) -> None:
        """To be called before each cut."""
        fates = dict(self.fate)
        self._kept |= {n for n, fate in fates.items() if fate == "committed" and self._begun.get(n) == self.cuts}
        self.cuts += 1

    def check(self) -> str:
        counts = {"safe": Counter[int](), "loose": Counter[int]()}
        for topic, count in counts.items():
            seen = set()
            for entries in stored(self.address, topic, PARTITIONS).values():
                for _, data in entries:
                    _, transaction, index = parsed(data)
                    assert (transaction, index) not in seen, f"{topic}: {transaction}/{index} is doubled"
                    seen.add((transaction, index))
                    count[transaction] += 1
        for transaction, fate in self.fate.items():
            size = self.size[transaction]
            sizes = {"safe": size // 2, "loose": size - size // 2}
            for topic, count in counts.items():
                right = {"committed": {sizes[topic]}, "aborted": {0}, "unknown": {0, sizes[topic]}}[fate]
                if fate != "aborted" and topic == "loose" and transaction not in self._kept:
                    continue  # a cut may have taken what was acknowledged before the commit
                assert count[transaction] in right, (
                    f"{topic}: {count[transaction]} of {sizes[topic]} records of {transaction}, which is {fate}"
                )
        return f"{len(self._kept)} mixed"


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    root = folder / "0"
    (root / "archive").mkdir(parents=True)
    (root / "data").mkdir()
    disk.keep(root)
    # The archive's address must stay the same: a link to the disk that is left.
    link = folder / "here"
    link.symlink_to(root)
    everything = chance.random() < 0.3
    broker = Broker(disk.environment, *SETTINGS, *["millstream.durability=commit"] * everything).start(link / "data")
    print("every topic is commit" if everything else "internal topics are os", flush=True)
    durable = {"millstream_durability": "commit", "segment_bytes": str(MIB)}
    for topic in ("in", "out", "copied", "safe", "newer-0"):
        create(broker.address, topic, PARTITIONS, **durable)
    create(broker.address, "loose", PARTITIONS, millstream_durability="os")
    create(broker.address, "changelog", cleanup_policy="compact", min_cleanable_dirty_ratio="0.1", **durable)
    create(
        broker.address,
        "history",
        millstream_archive=f"file://{link}/archive",
        local_retention_bytes=str(MIB),
        **durable,
    )
    world, mixed = World(broker.address, chance), Mixed(broker.address, 100, Random(chance.random()))
    changelog, history = Changelog(broker.address, chance), History(broker.address)
    newer = Newer(broker.address, 0, Random(chance.random()))
    try:
        for turn in range(1, count + 1):
            stop = threading.Event()
            threads = world.work(stop, mixed, newer, changelog, history)
            time.sleep(2 + chance.random() * 3)
            broker.end(signal.SIGKILL)
            mixed.note()
            forgets = chance.random() < 0.5
            root = disk.cut(root, folder / str(turn), None if forgets else chance)
            link.unlink()
            link.symlink_to(root)
            broker.start()
            time.sleep(1 + chance.random())
            stop.set()
            for thread in threads:
                thread.join()
            world.end()
            mixed.connect()
            newer.connect()
            archived = len(list((root / "archive").rglob("*.log")))
            print(
                f"cut {turn}, {'all' if forgets else 'some'} of what was not synced is lost: {world.check()}, "
                f"{newer.check()}, {mixed.check()}, {changelog.check()}, {history.check()}, {archived} segments archived; "
                f"started in {broker.recovery:.2f} s",
                flush=True,
            )
    finally:
        broker.end()
    whole(root / "data")


if __name__ == "__main__":
    main(__doc__ or "", rounds, 3)
