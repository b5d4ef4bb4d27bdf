"""Consumers read across archive, disk and tail without noticing; a store that fails or never answers holds up nobody else."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.broker import archive as archives
from millstream.broker.archive import WORKERS, Archives
from millstream.log import NotHere, StorageError
from millstream.log import archive as stored
from millstream.log import fetched as parts
from millstream.log.fetched import Extent
from millstream.log.segment import Segment
from millstream.protocol import errors
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.inside import Inside
from tests.broker.serving import Process
from tests.brokers import wait_until
from tests.log.logs import Spoiling

pytest.importorskip("fsspec", reason="the archive needs fsspec: pip install 'millstream[archive]'")
VALUE = os.urandom(10_000)


class Partition:
    """A partition whose archive answers when it is told to."""

    def __init__(self, name="t-0", store="file:///store"):
        self.name = name
        self.segment = Segment(Path(), 0)
        self.segment.remote = SimpleNamespace(url=f"{store}/t-id/0")
        self.answer = threading.Event()
        self.fetched = []
        self.under_way = self.most = 0
        self.error = None

    def fetch(self, missing):
        self.fetched.append(missing.extent)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        assert self.answer.wait(10)
        self.under_way -= 1
        if self.error is not None:
            raise self.error

    def missing(self, start=0):
        return NotHere("not here", Extent(self.segment, start, start + 1))


def running(body):
    """Run `body(archives, told)` on a loop; `told` notes what waiters were told."""

    async def main():
        log = SimpleNamespace(archives=set, archive=lambda now, only: False)
        made = Archives(asyncio.get_running_loop(), log)
        try:
            await asyncio.wait_for(body(made), 20)
        finally:
            made.close()

    asyncio.run(main())


async def until(condition):
    while not condition():  # noqa: ASYNC110 — a thread brings it about
        await asyncio.sleep(0.001)


def test_what_many_wait_for_is_fetched_once():
    async def body(made):
        partition, told = Partition(), []
        for reader in range(10):
            assert made.fetch(partition, partition.missing(), lambda reader=reader: told.append(reader))
        await until(lambda: partition.fetched)
        assert told == []
        partition.answer.set()
        await until(lambda: len(told) == 10)
        assert len(partition.fetched) == 1
        assert made.fetch(partition, partition.missing(), lambda: told.append("again"))
        await until(lambda: "again" in told)
        assert len(partition.fetched) == 2

    running(body)


def test_what_is_read_ahead_takes_no_thread_from_those_who_wait():
    async def body(made):
        partition, told = Partition(), []
        made.fetch_ahead(partition, partition.missing(0))
        made.fetch_ahead(partition, partition.missing(0))
        assert made.fetch(partition, partition.missing(0), lambda: told.append("what was fetched ahead"))
        for start in range(1, 5):
            made.fetch_ahead(partition, partition.missing(start))
        assert made.fetch(partition, partition.missing(9), lambda: told.append("what was missed"))
        await until(lambda: partition.under_way == WORKERS // 2 + 1)
        partition.answer.set()
        await until(lambda: len(told) == 2)
        assert sorted(each.start for each in partition.fetched) == [0, 1, 9]

    running(body)


def test_so_many_are_fetched_from_an_archive_at_once_and_others_are_not_held_up():
    async def body(made):
        slow, quick, told = Partition(), Partition(store="file:///other"), []
        for start in range(100):
            assert made.fetch(slow, slow.missing(start), lambda: told.append("slow"))
        quick.answer.set()
        assert made.fetch(quick, quick.missing(), lambda: told.append("quick"))
        await until(lambda: told == ["quick"])
        assert len(slow.fetched) <= WORKERS
        slow.answer.set()
        await until(lambda: len(told) == 101)
        assert slow.most <= WORKERS and [each.start for each in slow.fetched] != []

    running(body)


@pytest.mark.parametrize("error", [StorageError("the archive is on holiday"), ValueError("unforeseen")])
def test_a_failed_fetch_is_told_for_a_moment_and_tried_again(error, monkeypatch):
    monkeypatch.setattr(archives, "FAILED_SECONDS", 0.2)

    async def body(made):
        partition, told = Partition(), []
        partition.error = error
        partition.answer.set()
        assert made.fetch(partition, partition.missing(), lambda: told.append(1))
        await until(lambda: told)
        assert not made.fetch(partition, partition.missing(), lambda: told.append(2)), "it failed this moment"
        assert made.fetch(partition, partition.missing(1), lambda: told.append(3)), "another extent"
        await asyncio.sleep(0.25)
        partition.error = None
        assert made.fetch(partition, partition.missing(), lambda: told.append(4))
        await until(lambda: 4 in told)
        assert made.fetch(partition, partition.missing(), lambda: told.append(5))

    running(body)


def test_a_store_that_never_answers(monkeypatch):
    """Who waits is told after a time; what waited behind it is not begun; it may come late after all."""
    monkeypatch.setattr(archives, "FETCH_SECONDS", 0.1)
    monkeypatch.setattr(archives, "FAILED_SECONDS", 5.0)

    async def body(made):
        partition, told = Partition(), []
        for start in range(WORKERS + 3):
            assert made.fetch(partition, partition.missing(start), lambda start=start: told.append(start))
        await until(lambda: len(told) == WORKERS + 3)
        assert len(partition.fetched) == WORKERS
        assert not made.fetch(partition, partition.missing(0), lambda: told.append("too soon"))
        partition.answer.set()
        await until(lambda: partition.under_way == 0)
        await asyncio.sleep(0.05)
        assert made.fetch(partition, partition.missing(0), lambda: told.append("here")), "it came late"
        assert not made.fetch(partition, partition.missing(WORKERS), lambda: told.append("never begun"))
        await until(lambda: "here" in told)
        assert len(partition.fetched) == WORKERS + 1

    running(body)


def test_the_end_does_not_wait_for_a_store_that_never_answers(monkeypatch):
    monkeypatch.setattr(archives, "CLOSE_SECONDS", 0.1)

    async def body(made):
        partition = Partition()
        assert made.fetch(partition, partition.missing(), lambda: None)
        await until(lambda: partition.fetched)
        made.close()
        begun = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(None, made.join)
        assert time.monotonic() - begun < 2
        partition.answer.set()  # ... and when it does, nothing comes of it

    running(body)


def archived(broker, topic, count, archive, size=10_000, **config):
    """Make a topic of so many records, of which all but the last segment are in the archive; those segments."""
    settings = {
        "millstream.archive": f"file://{archive}",
        "internal.segment.bytes": "100000",
        "local.retention.bytes": "0",
        "retention.ms": "-1",
        **config,
    }
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result(10)
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 20_000, "linger.ms": 5})
    for i in range(count):
        producer.produce(topic, b"%06d" % i + os.urandom(size - 6))
        producer.poll(0)
    assert producer.flush(20) == 0
    folder = broker.folder / "topics" / topic / "0"
    wait_until(lambda: len(list(folder.glob("*.log"))) == 1, "local copies go")
    return sorted(Path(archive).rglob(f"{topic}-*/0/*.log"))


@pytest.mark.system
@pytest.mark.parametrize(("times", "error"), [(1, 0), (2, errors.CORRUPT_MESSAGE)])
def test_what_came_damaged_is_fetched_again_before_an_error_goes_out(times, error, tmp_path, monkeypatch):
    with Inside(tmp_path / "data") as broker, broker.wire() as wire:
        archived(broker, "t", 30, tmp_path / "archive")
        spoiling = Spoiling(monkeypatch, 1000, times)
        ask = FetchRequest(max_wait_ms=10_000, min_bytes=1, max_bytes=1_000_000)
        ask.topics = [FetchTopic("t", partitions=[FetchPartition(0, -1, 0, partition_max_bytes=1_000_000)])]
        for _ in range(3):
            answer = wire.ask(ask, 4).responses[0].partitions[0]
            assert answer.error_code == error and bool(answer.records) == (not error)
        assert spoiling.transfers[0] == 2


@pytest.mark.system
def test_a_reader_from_start_to_end_misses_two_extents(tmp_path, monkeypatch):
    """The others are on their way while the one before is read; each is fetched once."""
    monkeypatch.setattr(parts, "EXTENT", 50_000)
    wanted, transfers, real = {}, Counter(), (Archives.fetch, Archives.fetch_ahead, stored.fetch)

    def fetch(self, partition, missing, then):
        wanted.setdefault(missing.extent, "missed")
        return real[0](self, partition, missing, then)

    def fetch_ahead(self, partition, missing):
        wanted.setdefault(missing.extent, "ahead")
        real[1](self, partition, missing)

    def transfer(found, folder, start, stop):
        transfers[found.base, start] += 1
        return real[2](found, folder, start, stop)

    monkeypatch.setattr(Archives, "fetch", fetch)
    monkeypatch.setattr(Archives, "fetch_ahead", fetch_ahead)
    monkeypatch.setattr(stored, "fetch", transfer)
    with Inside(tmp_path / "data") as broker:
        archived(broker, "t", 100, tmp_path / "archive", **{"internal.segment.bytes": "300000"})
        last = broker.broker.log.topics["t"].partitions[0].local_start_offset
        settings = {"group.id": "g", "log_level": 0, "max.partition.fetch.bytes": 20_000}
        consumer = Consumer({"bootstrap.servers": broker.address, **settings})
        consumer.assign([TopicPartition("t", 0, 0)])
        found = [int(consumer.poll(10).value()[:6]) for _ in range(100)]
        consumer.close()
    assert found == list(range(100)) and last > 50
    assert len(wanted) > 10 and list(wanted.values()) == ["missed"] * 2 + ["ahead"] * (len(wanted) - 2)
    assert set(transfers.values()) == {1} and len(transfers) == len(wanted)


def fetched(fd):
    """Bytes on disk of a part of an archive that a process holds; None of what is something else, or closed by now."""
    try:
        return fd.stat().st_blocks * 512 if "fetched" in os.readlink(fd) else None
    except FileNotFoundError:
        return None


@pytest.mark.system
def test_ten_readers_of_a_hundred_old_segments(tmp_path):
    """What they have on disk at the same time is bounded, and so are the files and the memory of the broker."""
    cache = 1_000_000
    with Process(tmp_path / "data", f"millstream.archive.cache.bytes={cache}") as broker:
        segments = archived(broker, "t", 1000, tmp_path / "archive")
        assert len(segments) >= 90
        process = Path(f"/proc/{broker.popen.pid}")

        def resident():
            return int(process.joinpath("statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        before, seen, done = resident(), [], []

        def consume(reader):
            consumer = Consumer({"bootstrap.servers": broker.address, "group.id": f"g{reader}", "log_level": 0})
            start = Random(reader).randrange(900)
            consumer.assign([TopicPartition("t", 0, start)])
            found = []
            while len(found) < 100:
                found += [int(m.value()[:6]) for m in consumer.consume(20, 5) if m.error() is None]
            done.append((found[:100], list(range(start, start + 100))))
            consumer.close()

        readers = [threading.Thread(target=consume, args=(i,)) for i in range(10)]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            held = [size for fd in process.joinpath("fd").iterdir() if (size := fetched(fd)) is not None]
            seen.append((sum(held), len(held), resident() - before))
            time.sleep(0.005)
        assert len(done) == 10 and all(found == expected for found, expected in done)
        # Beside the cache: what is on its way, and what is being sent.
        assert 0 < max(sizes for sizes, _, _ in seen) < cache + (WORKERS + 2 * 10) * 110_000
        assert max(count for _, count, _ in seen) < 40
        assert max(more for _, _, more in seen) < 40_000_000


@pytest.mark.system
def test_an_archive_that_never_answers_holds_nobody_up(tmp_path):
    """A pipe in the place of a segment: opening it never ends."""
    broker = Process(tmp_path / "data")
    with broker:
        stuck = archived(broker, "stuck", 50, tmp_path / "one")
        archived(broker, "fine", 50, tmp_path / "two")
        for path in stuck:
            path.unlink()
            os.mkfifo(path)
        consumers = [Consumer({"bootstrap.servers": broker.address, "group.id": "g"}) for _ in range(8)]
        for i, consumer in enumerate(consumers):
            consumer.assign([TopicPartition("stuck", 0, i * 5)])
            assert consumer.poll(0.2) is None
        reader = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        reader.assign([TopicPartition("fine", 0, 0), TopicPartition("stuck", 0, 0)])
        found = []
        begun = time.monotonic()
        while len(found) < 50:
            message = reader.poll(5)
            assert message is not None and message.topic() == "fine", "the other archive's reader waits"
            found.append(message.offset())
        assert found == list(range(50)) and time.monotonic() - begun < 5
        archived(broker, "more", 20, tmp_path / "two")
        for consumer in [*consumers, reader]:
            consumer.close()
        begun = time.monotonic()
        assert broker.end() == 0
        assert time.monotonic() - begun < archives.CLOSE_SECONDS + 5
    with broker:
        assert "damaged" not in broker.log.read_text()


@pytest.mark.system
def test_across_archive_disk_and_tail(tmp_path):
    archive = tmp_path / "archive"
    with Process(tmp_path / "data") as broker:
        config = {
            "millstream.archive": f"file://{archive}",
            "segment.bytes": str(1 << 20),
            "local.retention.bytes": str(2 << 20),
        }
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(10)
        producer = Producer({"bootstrap.servers": broker.address, "batch.size": 50_000})
        start = int(time.time() * 1000)
        for i in range(1000):
            producer.produce("t", b"%06d" % i + VALUE, timestamp=start + i)
            producer.poll(0)
        assert producer.flush(20) == 0
        folder = broker.folder / "topics" / "t" / "0"
        wait_until(lambda: len(list(folder.glob("*.log"))) <= 4, "local copies go")
        assert len(list(archive.rglob("*.log"))) >= 6
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        found = consumer.offsets_for_times([TopicPartition("t", 0, start + 123)], timeout=10)
        assert found[0].offset == 123
        consumer.assign([TopicPartition("t", 0, 0)])
        seen = []
        deadline = time.monotonic() + 20
        while len(seen) < 1000 and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.5):
                assert message.error() is None
                seen.append(int(message.value()[:6]))
        assert seen == list(range(1000))
        # The archive goes away: an error for who wants it, service for the others.
        for path in archive.rglob("*.log"):
            path.unlink()
    with broker:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert consumer.poll(1.5) is None
        consumer.assign([TopicPartition("t", 0, 990)])
        assert consumer.poll(10).offset() == 990
        consumer.close()
        assert "cannot be read" in broker.log.read_text()


def test_the_broker_starts_without_the_package():
    code = "import sys, millstream.broker.server; assert 'fsspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
