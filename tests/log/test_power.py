"""A power cut: what was synced is there, of the rest anything may be; acknowledged is what `flush` covered.

The cut is simulated on a copy of the folder: each file keeps what its last fsync saw and loses, or gets zeros for, any
of what came after; small files that were replaced without a sync come out empty. (Directory entries are taken to
survive: cutting those off too needs a file system of its own.)
"""

import os
import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.protocol import records
from tests.log.logs import NOW, batch, consume, crash, fill, maintain, open_log, values

CONFIG = {"internal.segment.bytes": "700", "millstream.durability": "commit", "retention.ms": "-1"}


class Disk:
    """Notes the size that each file had when it was last synced."""

    def __init__(self, monkeypatch):
        self.synced: dict[int, int] = {}
        monkeypatch.setattr(os, "fsync", self.sync)
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def sync(self, fd):
        found = os.fstat(fd)
        self.synced[found.st_ino] = found.st_size

    def cut(self, folder, target, chance):
        """Copy what a power cut leaves."""
        shutil.copytree(folder, target)
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.name == "lock":
                continue
            found = path.stat()
            kept = self.synced.get(found.st_ino, 0)
            data = path.read_bytes()
            if kept >= len(data):
                continue
            at = chance.randint(kept, len(data))
            rest = chance.choice([b"", bytes(len(data) - at), data[at:]])
            (target / path.relative_to(folder)).write_bytes(data[:at] + rest)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_what_was_flushed_survives(tmp_path_factory, data, seed):
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("power")
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch)
        log = open_log(folder / "0")
        partition = log.create("t", 1, CONFIG).partitions[0]
        model: list[bytes] = []
        for turn in range(data.draw(st.integers(1, 4))):
            durable = partition.flushed_offset
            for _ in range(data.draw(st.integers(1, 6))):
                action = data.draw(st.sampled_from(["append", "append", "flush", "maintain", "checkpoint"]))
                if action == "append":
                    model += fill(partition, data.draw(st.integers(1, 10)))
                elif action == "flush":
                    partition.flush()
                elif action == "maintain":
                    maintain(log)
                else:
                    partition.checkpoint()
            assert partition.flushed_offset >= durable
            durable = partition.flushed_offset
            disk.cut(folder / str(turn), folder / str(turn + 1), chance)
            crash(log)
            log = open_log(folder / str(turn + 1))
            # What the copy holds is what the disk held.
            for path in (folder / str(turn + 1)).rglob("*"):
                if path.is_file():
                    found = path.stat()
                    disk.synced[found.st_ino] = found.st_size
            partition = log.topics["t"].partitions[0]
            found = consume(partition)
            assert partition.end_offset >= durable
            assert [record.offset for record in found][:durable] == list(range(durable))
            assert all(record.value == model[record.offset] for record in found)
            present = {record.offset: record.value or b"" for record in found}
            if len(present) != partition.end_offset:
                # A segment behind the last flush lost its end while a later one survived: offsets are missing there.
                break
            model = [present[i] for i in range(partition.end_offset)]
        log.close()


def test_flush_syncs_the_data_before_it_says_so(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    with open_log(tmp_path / "log") as log:
        partition = log.create("t", 1, CONFIG).partitions[0]
        for i in range(30):
            partition.append(batch(b"%d" % i), NOW)
            partition.flush()
            assert partition.flushed_offset == i + 1
            assert all(disk.synced[s.path.stat().st_ino] == s.size for s in partition.segments)


def test_producer_ids_and_topics_are_synced_before_they_are_given(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    log = open_log(tmp_path / "0")
    log.create("t", 2, {"retention.ms": "77"})
    given_ids = [log.next_producer_id() for _ in range(3)]
    log.configure("t", {"retention.ms": "78"})
    log.topics["t"].partitions[0].append(records.build([(b"k", b"v")], NOW), NOW)
    log.topics["t"].partitions[0].flush()
    log.topics["t"].partitions[0].delete_before(1)
    disk.cut(tmp_path / "0", tmp_path / "1", random.Random(1))
    crash(log)
    with open_log(tmp_path / "1") as log:
        assert log.topics["t"].config.retention_ms == 78
        assert log.next_producer_id() > max(given_ids)
        assert log.topics["t"].partitions[0].start_offset == 1
        assert values(consume(log.topics["t"].partitions[0])) == []
