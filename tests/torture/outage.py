"""The power is cut while transactions, compaction and an archive are at work, on topics of durability `commit`.

What each cut leaves is what was synced (forgetful.py), the archive's folder included, as on another disk that loses its
power as well. After each, every record that was acknowledged, in a transaction or not, is where it was acknowledged; in the
compacted topic each key has the latest value that was acknowledged, or a later one; the archived topic is read from its
beginning without a gap. Ends of transactions and committed offsets are not in this promise: docs/limits.md.
"""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from random import Random

from confluent_kafka import Producer

from tests.torture.forgetful import Disk
from tests.torture.loads import QUICK, Broker, create, main, stored, whole
from tests.torture.transactions import PARTITIONS, Plain, Writer, parsed, started

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


def written(writer: Writer) -> str:
    """Every record of transactions that was acknowledged is there, once."""
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, entries in stored(writer.address, "out", PARTITIONS, committed=False).items():
        for offset, data in entries:
            _, transaction, index = parsed(data)
            assert (transaction, index) not in places, f"{transaction}/{index} is doubled"
            places[transaction, index] = (partition, offset)
    for key, place in writer.acknowledged.items():
        assert places.get(key) == place, f"{key} was acknowledged at {place} and is at {places.get(key)}"
    return f"{len(writer.acknowledged)} in transactions"


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    root = folder / "0"
    (root / "archive").mkdir(parents=True)
    (root / "data").mkdir()
    disk.keep(root)
    # The archive's address must stay the same: a link to the disk that is left.
    link = folder / "here"
    link.symlink_to(root)
    broker = Broker(disk.environment, *SETTINGS).start(link / "data")
    durable = {"millstream_durability": "commit", "segment_bytes": str(MIB)}
    for topic in ("in", "out", "copied"):
        create(broker.address, topic, PARTITIONS, **durable)
    create(broker.address, "changelog", cleanup_policy="compact", min_cleanable_dirty_ratio="0.1", **durable)
    create(
        broker.address,
        "history",
        millstream_archive=f"file://{link}/archive",
        local_retention_bytes=str(MIB),
        **durable,
    )
    writer, plain = Writer(broker.address, 0, chance), Plain(broker.address)
    changelog, history = Changelog(broker.address, chance), History(broker.address)
    broken: list[str] = []
    try:
        for turn in range(1, count + 1):
            stop = threading.Event()
            threads = started([writer, plain, changelog, history], stop, broken)
            time.sleep(2 + chance.random() * 3)
            broker.end(signal.SIGKILL)
            after = folder / str(turn)
            disk.after_cut(disk.key(root), after)
            root = after
            link.unlink()
            link.symlink_to(root)
            disk.keep(root)
            broker.start()
            time.sleep(1 + chance.random())
            stop.set()
            for thread in threads:
                thread.join()
            assert not broken, broken
            archived = len(list((root / "archive").rglob("*.log")))
            print(
                f"cut {turn}: {written(writer)}, {plain.check()}, {changelog.check()}, {history.check()}, "
                f"{archived} segments archived; "
                f"started in {broker.recovery:.2f} s",
                flush=True,
            )
    finally:
        broker.end()
    whole(root / "data")


if __name__ == "__main__":
    main(__doc__ or "", rounds, 3)
