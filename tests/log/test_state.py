"""What readers may see: up to the high watermark, which for durability `commit` is what has been synced."""

import os

import pytest

from millstream.log import OffsetOutOfRange, StorageError
from tests.log.logs import NOW, batch, consume, crash, fill, maintain, open_log, values

COMMIT = {"millstream.durability": "commit", "retention.ms": "-1"}


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


def test_commit_shows_what_was_flushed(log):
    partition = log.create("t", 1, COMMIT).partitions[0]
    first = fill(partition, 3)
    assert (partition.high_watermark, partition.last_stable_offset, partition.end_offset) == (0, 0, 3)
    read = partition.read(0, 1000)
    assert read.slices == [] and (read.end_offset, read.last_stable_offset, read.next_offset) == (0, 0, 0)
    assert partition.read(2, 1000).next_offset == 2
    with pytest.raises(OffsetOutOfRange):
        partition.read(4, 1000)
    partition.flush()
    second = fill(partition, 2)
    assert values(consume(partition)) == first
    assert values(consume(partition, committed=True)) == first
    assert values(consume(partition, max_bytes=1)) == first
    with pytest.raises(OffsetOutOfRange):
        partition.delete_before(4)
    partition.flush()
    assert values(consume(partition)) == first + second
    assert partition.delete_before(-1) == 5


@pytest.mark.parametrize("durability", ["os", "interval"])
def test_the_others_show_everything(log, durability):
    partition = log.create("t", 1, {"millstream.durability": durability}).partitions[0]
    fill(partition, 3)
    assert partition.high_watermark == partition.last_stable_offset == 3 and len(consume(partition)) == 3


def test_an_open_transaction_and_the_watermark(log):
    partition = log.create("t", 1, COMMIT).partitions[0]
    fill(partition, 2)
    partition.append(batch(b"open", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    assert partition.last_stable_offset == 0
    partition.flush()
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 2)


def test_the_watermark_never_goes_back_when_the_durability_changes(log):
    partition = log.create("t", 1, {"retention.ms": "-1"}).partitions[0]
    fill(partition, 3)
    log.configure("t", {"millstream.durability": "commit"})
    assert partition.high_watermark == 3
    fill(partition, 2)
    assert partition.high_watermark == 3
    log.configure("t", {"millstream.durability": "os"})
    assert partition.high_watermark == 5
    log.configure("t", {"millstream.durability": "commit"})
    assert partition.high_watermark == 5
    fill(partition, 1)
    partition.flush()
    assert partition.high_watermark == 6


def test_what_a_killed_process_left_is_made_safe_before_it_is_shown(tmp_path, monkeypatch):
    log = open_log(tmp_path / "log")
    fill(log.create("t", 1, COMMIT).partitions[0], 3)
    crash(log)
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert synced and partition.flushed_offset == partition.high_watermark == 3


def test_retention_leaves_what_nobody_could_read(log):
    partition = log.create("t", 1, {**COMMIT, "internal.segment.bytes": "500", "retention.bytes": "600"}).partitions[0]
    fill(partition, 30)
    partition._retain(NOW)
    assert partition.start_offset == 0
    partition.flush()
    partition._retain(NOW)
    assert partition.start_offset > 0


def test_maintenance_flushes_what_nobody_else_does(log):
    partition = log.create("t", 1, COMMIT).partitions[0]
    fill(partition, 3)
    maintain(log, NOW + 1000)
    assert partition.high_watermark == 3


def test_the_user_of_the_log_is_told_what_to_flush(log):
    told, woken = [], []
    early = log.create("early", 1, COMMIT).partitions[0]
    log.on_unflushed(told.append)
    late = log.create("late", 1, COMMIT).partitions[0]
    plain = log.create("plain", 1).partitions[0]
    for partition in (early, late, plain):
        partition.listeners.add(woken.append)
        partition.append(batch(), NOW)
    assert told == [early, late] and woken == [plain]
    early.announce()
    assert woken == [plain, early]


def test_a_failed_sync_shows_nothing_more(log, monkeypatch):
    partition = log.create("t", 1, COMMIT).partitions[0]
    seen = fill(partition, 1)
    partition.flush()
    fill(partition, 1)

    def refuse(_fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageError):
        partition.flush()
    assert values(consume(partition)) == seen and partition.high_watermark == 1
