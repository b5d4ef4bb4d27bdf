"""A partition: append, read, find, delete; and what it refuses."""

import errno
import os
import struct
import subprocess
import threading
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log import CorruptMessage, Log, LogError, OffsetOutOfRange, StorageError, appending, upkeep
from millstream.log.errors import (
    BatchesTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnknownTopic,
    UnsupportedCompression,
)
from millstream.protocol import records
from tests.log.logs import NOW, SMALL, batch, batches, consume, content, crash, fill, keyed, maintain, open_log, values
from tests.mounts import mount


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture
def partition(log):
    return log.create("numbers", 1, SMALL).partitions[0]


def test_what_is_appended_is_read(partition):
    first = partition.append(batch(b"a", b"b"), NOW)
    second = partition.append(batch(b"c"), NOW)
    assert first == (0, 1, -1, 0, False)
    assert second == (2, 2, -1, 0, False)
    assert [(r.offset, r.value) for r in consume(partition)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert (partition.start_offset, partition.end_offset, partition.last_stable_offset) == (0, 3, 3)


def test_offsets_and_sizes_after_each_append(partition):
    size = 0
    for i in range(5):
        data = batch(b"x" * i)
        partition.append(data, NOW)
        size += len(data)
        assert (partition.end_offset, partition.size) == (i + 1, size)


def test_several_batches_in_one_append(partition):
    assert partition.append(batch(b"a", b"b") + batch(b"c"), NOW)[:2] == (0, 2)
    assert values(consume(partition)) == [b"a", b"b", b"c"]
    assert [h.leader_epoch for h, _ in batches(content(partition.read(0, 1000)))] == [0, 0]


def test_a_memoryview_is_patched_in_place(partition):
    partition.append(batch(), NOW)
    frame = bytearray(b"before") + batch(b"x") + b"after"
    partition.append(memoryview(frame)[6:-5], NOW)
    assert frame[:6] == b"before" and frame[-5:] == b"after"
    assert records.header(frame, 6).base_offset == 1


def test_reading_across_segments_in_any_piece_size(partition):
    expected = fill(partition, 60)
    assert len(partition.segments) > 5
    for max_bytes in (1, 200, 1000, 100_000):
        assert values(consume(partition, max_bytes=max_bytes)) == expected
    for offset in range(60):
        assert values(consume(partition, offset, max_bytes=500)) == expected[offset:]


def test_a_read_gives_whole_batches_and_at_least_one(partition):
    partition.append(batch(*[b"x" * 50] * 5), NOW)
    partition.append(batch(b"y"), NOW)
    size = partition.size
    whole = partition.read(0, size)
    assert (whole.size, whole.next_offset) == (size, 6)
    assert partition.read(0, size - 1).next_offset == 5
    assert partition.read(3, 1).next_offset == 5
    assert partition.read(5, 1).next_offset == 6
    assert partition.read(6, 100) == ([], 0, 6, 6, [], 6, None)


def test_out_of_range(partition):
    fill(partition, 3)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange, match="0 to 2") as caught:
            partition.read(offset, 100)
        assert caught.value.code == 1


def test_listeners_hear_of_each_append(partition):
    heard = []
    partition.listeners.add(lambda p: heard.append(p.end_offset))
    fill(partition, 2)
    assert heard == [1, 2]


@pytest.mark.parametrize("timestamps", [[5, 9, 7, 9, 12], [100] * 5, [50, 40, 30, 20, 10]])
def test_offsets_by_time(log, partition, timestamps):
    for _ in range(6):
        for t in timestamps:
            partition.append(batch(bytes(40), timestamp=NOW + t), NOW)
        partition.append(records.build([(b"k", b"v")] * 3, [NOW + t for t in timestamps[:3]]), NOW)
    everything = consume(partition)
    for wanted in range(NOW, NOW + 102):
        expected = next(((r.offset, r.timestamp) for r in everything if r.timestamp >= wanted), None)
        assert partition.offset_for_time(wanted) == expected
    newest = max(everything, key=lambda r: r.timestamp)
    assert partition.offset_of_max_timestamp() == (newest.offset, newest.timestamp)
    assert partition.max_timestamp == newest.timestamp


def test_no_time_in_an_empty_partition(partition):
    assert partition.offset_for_time(0) is None
    assert partition.offset_of_max_timestamp() is None
    assert partition.max_timestamp == -1


def test_no_time_in_an_emptied_partition(log, partition):
    """Neither deletion nor retention leaves a largest timestamp that leads nowhere."""
    fill(partition, 30)
    partition.delete_before(-1)
    assert partition.offset_of_max_timestamp() is None and partition.offset_for_time(0) is None
    maintain(log)
    assert partition.offset_of_max_timestamp() is None
    for i in (7, 3, 5):
        fill(partition, 1, timestamp=NOW - i)
    assert partition.offset_of_max_timestamp() == (31, NOW - 3) and partition.offset_for_time(0) == (30, NOW - 7)


@pytest.mark.parametrize("index_interval", ["0", "4096"])
def test_the_largest_timestamp_is_one_of_what_is_left(log, index_interval):
    """Wherever the log begins, also inside of a batch."""
    partition = log.create("t", 1, {**SMALL, "index.interval.bytes": index_interval}).partitions[0]
    chance = Random(3)
    for _ in range(20):
        stamps = [NOW - chance.randrange(1000) for _ in range(chance.randrange(1, 5))]
        partition.append(records.build([(b"k", bytes(30))] * len(stamps), stamps), NOW)
    everything = consume(partition)
    for start in range(partition.end_offset):
        partition.delete_before(start)
        newest = max((r for r in everything if r.offset >= start), key=lambda r: (r.timestamp, -r.offset))
        assert partition.offset_of_max_timestamp() == (newest.offset, newest.timestamp)
        if start % 7 == 0:
            maintain(log)


def test_log_append_time(log):
    partition = log.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"}).partitions[0]
    appended = partition.append(records.build([(b"k", b"v")] * 2, [5, 6]), NOW)
    assert appended.log_append_time == NOW
    (header, data), *_ = batches(content(partition.read(0, 1000)))
    assert records.valid(data) and header.log_append_time and header.max_timestamp == NOW
    assert [r.timestamp for r in consume(partition)] == [NOW, NOW]
    assert partition.offset_for_time(NOW) == (0, NOW)


def test_a_producers_claim_of_log_append_time(log, partition):
    claimed = records.encode(
        records.header(batch())._replace(attributes=records.LOG_APPEND_TIME), list(records.records(batch()))
    )
    partition.append(claimed[:], NOW)
    (header, data), *_ = batches(content(partition.read(0, 1000)))
    assert not header.log_append_time and records.valid(data)
    stamped = log.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"}).partitions[0]
    with pytest.raises(InvalidTimestamp):
        stamped.append(claimed, NOW)


def resealed(data: bytearray, offset: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, offset, value)
    records.seal(data)
    return data


def flipped(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


@pytest.mark.parametrize(
    ("make", "error", "code", "says"),
    [
        (lambda: flipped(batch()), CorruptMessage, 2, "wrong checksum"),
        (lambda: batch()[:-1], CorruptMessage, 2, "announces"),
        (lambda: batch() + b"xx", CorruptMessage, 2, "2 bytes cannot hold a batch"),
        (lambda: bytearray(), InvalidRecord, 87, "at least one"),
        (lambda: batch(bytes(1_048_588)), MessageTooLarge, 10, "max.message.bytes allows 1048588"),
        (lambda: batch(bytes(700)), BatchesTooLarge, 18, "segment.bytes allows 600"),
        (lambda: resealed(batch(), 16, ">b", 1), InvalidRecord, 87, "old format 1"),
        (lambda: resealed(batch(), 16, ">b", 0), InvalidRecord, 87, "old format 0"),
        (lambda: resealed(batch(), 16, ">b", 3), CorruptMessage, 2, "magic 3"),
        (lambda: bytearray(12) + bytes(4) + b"\x01" + bytes(10), InvalidRecord, 87, "old format 1"),
        (lambda: resealed(batch(), 57, ">i", 2), InvalidRecord, 87, "expected count - 1"),
        (lambda: resealed(batch(), 57, ">i", 0), InvalidRecord, 87, "expected count - 1"),
        (lambda: resealed(batch(b"a", b"b"), 23, ">i", 5), InvalidRecord, 87, "expected count - 1"),
        (lambda: resealed(batch(), 21, ">h", 5), UnsupportedCompression, 76, "codec 5"),
        (
            lambda: records.build_marker(1, 0, commit=True, coordinator_epoch=0, timestamp=1),
            InvalidRecord,
            87,
            "control",
        ),
        (lambda: resealed(batch(), 21, ">h", 0x40), InvalidRecord, 87, "delete horizon"),
        (lambda: batch(producer_id=5, producer_epoch=0, base_sequence=-1), InvalidRecord, 87, "sequence number -1"),
        (lambda: batch(timestamp=NOW + 3_600_001), InvalidTimestamp, 32, "out of range"),
        (lambda: resealed(resealed(batch(b"a", b"b"), 57, ">i", 3), 23, ">i", 2), InvalidRecord, 87, "record"),
    ],
)
def test_what_is_refused_and_leaves_no_trace(partition, make, error, code, says):
    partition.append(batch(b"before"), NOW)
    with pytest.raises(error, match=says) as caught:
        partition.append(make(), NOW)
    assert caught.value.code == code
    # Not even when good batches stand before it.
    with pytest.raises(LogError):
        partition.append(batch(b"good") + (make() or batch(bytes(5000))), NOW)
    assert partition.segments[-1].path.stat().st_size == partition.size
    partition.append(batch(b"after"), NOW)
    assert values(consume(partition)) == [b"before", b"after"]


def test_bounds_on_timestamps(log):
    partition = log.create("t", 1, {"message.timestamp.before.max.ms": "1000"}).partitions[0]
    partition.append(batch(timestamp=NOW - 1000), NOW)
    for timestamps in ([NOW - 1001], [NOW, NOW - 1001, NOW]):
        with pytest.raises(
            InvalidTimestamp, match=rf"should be within \[{NOW - 1000}, .*message.timestamp.before.max.ms"
        ):
            partition.append(records.build([(b"k", b"v")] * len(timestamps), timestamps), NOW)
    partition.append(batch(timestamp=-1), NOW)


@pytest.mark.parametrize("codec", range(5))
def test_bounds_on_timestamps_are_exact_in_every_codec(log, codec):
    config = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "2000"}
    partition = log.create("t", 1, config).partitions[0]
    for timestamp, error in ((-1000, None), (-1001, "before.max.ms"), (2000, None), (2001, "after.max.ms")):
        data = records.build([(b"k", b"v")] * 2, [NOW, NOW + timestamp], codec=codec)
        if error is None:
            partition.append(data, NOW)
        else:
            with pytest.raises(InvalidTimestamp, match=error) as caught:
                partition.append(data, NOW)
            assert caught.value.code == 32
            assert [number for number, _ in caught.value.records] == [1]
    assert partition.end_offset == 4
    stamped = log.create("stamped", 1, {**config, "message.timestamp.type": "LogAppendTime"}).partitions[0]
    for timestamp in (5, NOW + 10**9):  # it is not kept, so it does not matter
        stamped.append(batch(timestamp=timestamp, codec=codec), NOW)
    assert [r.timestamp for r in consume(stamped)] == [NOW, NOW]


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_a_message_unpacks_to(log, codec):
    partition = log.create("t", 1, {"max.decompressed.message.bytes": "1000"}).partitions[0]
    # Kafka counts a record's encoded bytes behind its length (DefaultRecord.readPartiallyFrom).
    partition.append(batch(bytes(990), codec=codec), NOW)
    with pytest.raises(InvalidRecord, match=r"1001 bytes: max\.decompressed\.message\.bytes allows 1000"):
        partition.append(batch(bytes(991), codec=codec), NOW)


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_wants_keys(log, codec):
    partition = log.create("t", 1, {"cleanup.policy": "compact"}).partitions[0]
    partition.append(keyed((b"a", b"1"), codec=codec), NOW)
    with pytest.raises(InvalidRecord, match="without key") as caught:
        partition.append(records.build([(b"a", b"1"), (None, b"2")], NOW, codec=codec), NOW)
    assert caught.value.code == 87
    assert [number for number, _ in caught.value.records] == [1]


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_passes_through(partition, codec):
    data = batch(b"x" * 100, b"y" * 100, codec=codec)
    partition.append(data, NOW)
    assert content(partition.read(0, 1000)) == data
    assert values(consume(partition)) == [b"x" * 100, b"y" * 100]


def test_segments_roll_by_time(log):
    partition = log.create("t", 1, {"segment.ms": "1000"}).partitions[0]
    for t in (0, 500, 1000, 1001, 1500, 2002):
        partition.append(batch(timestamp=NOW - 10_000 + t), NOW)
    assert [s.base for s in partition.segments] == [0, 3, 5]


def test_delete_before(log, partition):
    fill(partition, 30)
    assert partition.delete_before(17) == 17
    assert partition.delete_before(5) == 17
    assert [r.offset for r in consume(partition)] == list(range(17, 30))
    with pytest.raises(OffsetOutOfRange):
        partition.read(16, 100)
    with pytest.raises(OffsetOutOfRange):
        partition.delete_before(31)
    before = partition.size
    maintain(log)
    assert partition.size < before
    assert [r.offset for r in consume(partition)] == list(range(17, 30))
    assert partition.delete_before(-1) == 30
    assert consume(partition) == []
    assert partition.offset_for_time(0) is None


def test_the_new_start_survives_a_crash(tmp_path):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, SMALL).partitions[0]
    fill(partition, 30)
    partition.delete_before(17)
    crash(log)
    with open_log(tmp_path / "log") as log:
        assert log.topics["t"].partitions[0].start_offset == 17


def test_a_reader_keeps_what_retention_deletes(log, partition):
    expected = fill(partition, 30)
    held = partition.read(0, 300)
    partition.delete_before(29)
    maintain(log)
    assert not (partition.folder / "00000000000000000000.log").exists()
    data = content(held)
    assert values(r for _, b in batches(data) for r in records.records(b)) == expected[: held.next_offset]


def test_what_is_deleted_is_not_held_open(log, partition):
    fill(partition, 60)
    for offset in range(60):
        content(partition.read(offset, 100))
    partition.delete_before(59)
    maintain(log)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    held = [os.readlink(link) for link in links if os.path.lexists(link)]
    assert not [path for path in held if path.startswith(str(log.folder)) and "(deleted)" in path]


def test_a_full_disk(log, partition, monkeypatch):
    partition.append(batch(b"before"), NOW)
    real = os.pwrite

    def full(fd, data, position):
        if len(data) > 20:
            return real(fd, bytes(data)[:20], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_room_at_all(fd, data, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    for pwrite in (full, no_room_at_all):
        monkeypatch.setattr(os, "pwrite", pwrite)
        with pytest.raises(StorageError, match="the disk is full") as caught:
            partition.append(batch(b"x" * 100), NOW)
        assert caught.value.code == 56
        assert partition.segments[-1].path.stat().st_size == partition.size
        assert values(consume(partition)) == [b"before"]
    monkeypatch.undo()
    assert partition.append(batch(b"after"), NOW).base_offset == 1
    assert values(consume(partition)) == [b"before", b"after"]


def test_a_file_system_that_is_really_full(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    if why := mount(folder, "size=256k"):
        pytest.skip(why)
    try:
        log = open_log(folder / "log")
        partition = log.create("t", 1).partitions[0]
        taken = []
        with pytest.raises(StorageError, match="the disk is full"):
            while True:
                partition.append(batch(b"%d" % len(taken) + bytes(1000)), NOW)
                taken.append(len(taken))
        assert len(taken) > 50
        assert [r.offset for r in consume(partition, max_bytes=10_000)] == taken
        # A crash on the full disk: it opens, is read, and works again once there is room.
        crash(log)
        log = open_log(folder / "log")
        partition = log.topics["t"].partitions[0]
        assert [r.offset for r in consume(partition, max_bytes=10_000)] == taken
        with pytest.raises(StorageError):
            partition.append(batch(bytes(5000)), NOW)
        log.maintain(NOW)
        subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
        assert partition.append(batch(b"after"), NOW).base_offset == len(taken)
        log.close()
        with open_log(folder / "log") as log:
            assert log.recovered == []
            assert values(consume(log.topics["t"].partitions[0], max_bytes=10_000))[-1] == b"after"
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def test_no_room_for_a_new_segment(log, partition, monkeypatch):
    fill(partition, 4)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(appending, "File", full)
        with pytest.raises(StorageError, match="no new segment"):
            fill(partition, 20)
    end = partition.end_offset
    fill(partition, 20)
    assert [r.offset for r in consume(partition)] == list(range(end + 20))


def test_a_failing_fsync_is_final(tmp_path, monkeypatch):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, {"millstream.durability": "commit"}).partitions[0]
    other = log.create("other", 1).partitions[0]
    partition.append(batch(b"synced"), NOW)
    partition.flush()
    assert partition.flushed_offset == 1
    partition.append(batch(b"lost"), NOW)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(StorageError, match="refused to sync"):
            partition.flush()
    for action in (partition.flush, lambda: partition.append(batch(), NOW)):
        with pytest.raises(StorageError, match="has failed") as caught:
            action()
        assert caught.value.code == 56
    assert partition.flushed_offset == 1
    assert values(consume(partition)[:1]) == [b"synced"]
    other.append(batch(), NOW)
    log.close()
    assert not (tmp_path / "log" / "clean").exists()
    with open_log(tmp_path / "log") as log:
        log.topics["t"].partitions[0].append(batch(), NOW)


def test_flush_covers_closed_segments(partition, monkeypatch):
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    fill(partition, 20)
    partition.flush()
    assert partition.flushed_offset == 20
    assert {os.path.basename(path) for path in synced} == {s.path.name for s in partition.segments}
    partition.flush()
    assert len(synced) == len(partition.segments)


@pytest.mark.parametrize(("name", "bound"), [("UNSAVED_BYTES", 1000), ("CHECKPOINT_BATCHES", 5)])
def test_a_checkpoint_is_made_now_and_then(log, monkeypatch, name, bound):
    partition = log.create("t", 1).partitions[0]
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 100)
    monkeypatch.setattr(upkeep, name, bound)
    fill(partition, 5)
    maintain(log)
    assert partition.flushed_offset == 0
    fill(partition, 5)
    maintain(log)
    assert partition.flushed_offset == 10
    assert (partition.folder / "00000000000000000010.snapshot").exists()
    fill(partition, 11)
    maintain(log)
    assert not (partition.folder / "00000000000000000010.snapshot").exists()


def test_partitions_share_what_may_be_scanned_after_a_crash(log, monkeypatch):
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 300)
    monkeypatch.setattr(upkeep, "UNSAVED_BYTES", 2000)
    one, two, idle = log.create("t", 3).partitions
    fill(one, 10)
    assert 1000 < one.unsaved_bytes < 2000
    maintain(log)
    assert one.flushed_offset == 0
    fill(two, 1)
    maintain(log)  # each may have a thousand now
    assert (one.flushed_offset, two.flushed_offset, idle.flushed_offset) == (10, 0, 0)
    assert one.unsaved_bytes == 0
    monkeypatch.setattr(upkeep, "UNSAVED_BYTES", 1)
    fill(one, 2)
    maintain(log)
    assert one.flushed_offset == 10  # but never less than 300
    fill(one, 1)
    maintain(log)
    assert one.flushed_offset == 13


def test_interval_durability(log):
    partition = log.create("t", 1, {"millstream.durability": "interval", "flush.ms": "100"}).partitions[0]
    partition.append(batch(), NOW)
    log.maintain(NOW + 50)
    assert partition.flushed_offset == 0
    log.maintain(NOW + 100)
    assert partition.flushed_offset == 1


def test_idempotent_producers(partition):
    def send(sequence, *texts, epoch=0):
        return partition.append(batch(*texts, producer_id=9, producer_epoch=epoch, base_sequence=sequence), NOW)

    first = send(0, b"a", b"b")
    send(2, b"c")
    again = send(0, b"a", b"b")
    assert again == (*first[:4], True)
    with pytest.raises(LogError, match="expected 3") as caught:
        send(4, b"e")
    assert caught.value.code == 45
    send(0, b"x", epoch=1)
    with pytest.raises(LogError) as caught:
        send(3, b"late")
    assert caught.value.code == 47
    assert values(consume(partition)) == [b"a", b"b", b"c", b"x"]
    assert partition.producers[9].epoch == 1


def test_sequences_within_one_append(partition):
    def made(sequence, *texts):
        return batch(*texts, producer_id=9, producer_epoch=0, base_sequence=sequence)

    partition.append(made(0, b"a") + made(1, b"b"), NOW)
    with pytest.raises(LogError) as caught:
        partition.append(made(2, b"c") + made(4, b"e"), NOW)
    assert caught.value.code == 45
    assert partition.append(made(0, b"a") + made(1, b"b"), NOW) == (0, 1, -1, 0, True)
    partition.append(made(2, b"c"), NOW)
    assert values(consume(partition)) == [b"a", b"b", b"c"]


def transact(partition, producer_id, sequence, *texts, epoch=0):
    return partition.append(
        batch(*texts, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True), NOW
    )


def end(partition, producer_id, commit, *, epoch=0, coordinator_epoch=0):
    marker = records.build_marker(producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch, timestamp=NOW)
    return partition.append(marker, NOW, internal=True)


def test_transactions(partition):
    fill(partition, 1)
    transact(partition, 1, 0, b"a1")
    transact(partition, 2, 0, b"b1")
    assert partition.last_stable_offset == 1
    assert len(consume(partition, committed=True)) == 1
    transact(partition, 1, 1, b"a2")
    end(partition, 1, False)
    assert partition.last_stable_offset == 2
    end(partition, 2, True)
    transact(partition, 1, 2, b"a3")
    end(partition, 1, True)
    assert partition.last_stable_offset == partition.end_offset
    assert values(consume(partition, 1, committed=True)) == [b"b1", b"a3"]
    assert values(consume(partition, 1)) == [b"a1", b"b1", b"a2", b"a3"]
    assert partition.read(1, 10_000, committed=True).aborted == [(1, 1)]
    assert partition.read(6, 10_000, committed=True).aborted == []


def test_a_committed_read_ends_at_the_stable_offset(partition):
    fill(partition, 10)
    transact(partition, 1, 0, b"open")
    fill(partition, 10)
    for max_bytes in (1, 400, 100_000):
        assert [r.offset for r in consume(partition, committed=True, max_bytes=max_bytes)] == list(range(10))
    assert partition.read(15, 1000, committed=True) == ([], 0, 21, 10, [], 15, None)


def test_writes_outside_of_the_open_transaction(partition):
    transact(partition, 1, 0, b"in")
    with pytest.raises(LogError) as caught:
        partition.append(batch(producer_id=1, producer_epoch=0, base_sequence=1), NOW)
    assert caught.value.code == 48
    end(partition, 1, True, coordinator_epoch=5)
    with pytest.raises(LogError) as caught:
        end(partition, 1, True, coordinator_epoch=4)
    assert caught.value.code == 52
    with pytest.raises(LogError) as caught:
        end(partition, 1, True, epoch=-1 + 0, coordinator_epoch=5)
    assert caught.value.code == 47


@pytest.mark.parametrize("position", ["first", "middle"])
def test_a_flipped_bit_in_a_closed_segment_is_never_served(log, partition, position):
    other = log.create("other", 1, SMALL).partitions[0]
    expected = fill(partition, 40)
    fill(other, 10)
    damaged = partition.segments[2]
    at = {"first": 0, "middle": damaged.size // 2}[position]
    with open(damaged.path, "r+b") as file:
        file.seek(at + 70)
        byte = file.read(1)
        file.seek(at + 70)
        file.write(bytes([byte[0] ^ 1]))
    seen = []
    with pytest.raises(CorruptMessage, match=damaged.path.name) as caught:
        offset = 0
        while offset < partition.end_offset:
            read = partition.read(offset, 150)
            seen += [r.value for _, b in batches(content(read)) for r in records.records(b)]
            offset = read.next_offset
    assert caught.value.code == 2
    assert seen == expected[: len(seen)]
    assert damaged.base <= len(seen) < damaged.end_offset
    bad = len(seen)
    assert values(consume(partition, bad + 1)) == expected[bad + 1 :]
    assert len(consume(other)) == 10
    partition.append(batch(b"goes on"), NOW)


def test_descriptors_are_bounded(tmp_path, monkeypatch):
    with open_log(tmp_path / "log") as log:
        log._opened._max_open = 4
        partition = log.create("t", 1, SMALL).partitions[0]
        expected = fill(partition, 150)
        maintain(log)
        assert len(partition.segments) > 20
        before = len(os.listdir("/proc/self/fd"))
        assert values(consume(partition)) == expected
        assert len(log._opened) <= 4
        assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_index_memory_is_bounded(tmp_path):
    with open_log(tmp_path / "log") as log:
        log._opened._max_index_bytes = 2000
        partition = log.create("t", 1, SMALL).partitions[0]
        expected = fill(partition, 100)
        maintain(log)
        assert values(consume(partition)) == expected
        assert log._opened._index_bytes <= 2000


def test_a_released_slice_says_so(partition):
    fill(partition, 1)
    piece = partition.read(0, 100).slices[0]
    piece.release()
    piece.release()
    with pytest.raises(ValueError, match="released"):
        _ = piece.file


def test_a_deleted_topics_partition_takes_no_more(log, partition):
    fill(partition, 20)
    held = partition.read(0, 500)
    log.delete("numbers")
    with pytest.raises(UnknownTopic):
        partition.append(batch(), NOW)
    maintain(log)
    assert len(content(held)) == held.size


def test_appends_reads_and_maintenance_at_once(tmp_path):
    with open_log(tmp_path / "log") as log:
        partition = log.create("t", 1, {**SMALL, "retention.bytes": "3000"}).partitions[0]
        stop = threading.Event()
        trouble = []

        def work():
            try:
                while not stop.is_set():
                    log.maintain(NOW)
                    partition.flush()
            except Exception as error:
                trouble.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            sent = []
            offset = 0
            for _ in range(300):
                sent += fill(partition, 5)
                read = partition.read(max(offset, partition.start_offset), 700)
                first = True
                for header, data in batches(content(read)):
                    for record in records.records(data):
                        if not first or record.offset >= offset:
                            assert record.value == sent[record.offset]
                    first = False
                    offset = header.last_offset + 1
        finally:
            stop.set()
            thread.join()
        assert trouble == []


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_reads_agree_with_a_list(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    with Log(folder) as log:
        partition = log.create("t", 1, SMALL).partitions[0]
        model = []
        for count in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=30)):
            texts = [b"%d" % (len(model) + i) for i in range(count)]
            partition.append(batch(*texts), NOW)
            model += texts
            if data.draw(st.booleans()):
                offset = data.draw(st.integers(0, len(model)))
                limit = data.draw(st.integers(0, 900))
                read = partition.read(offset, limit)
                found = [r for _, b in batches(content(read)) for r in records.records(b)]
                assert values(found) == model[found[0].offset : read.next_offset] if found else offset == len(model)
                assert not found or found[0].offset <= offset < read.next_offset
                assert found == [] or read.size <= max(limit, 0) or len({r.offset for r in found}) <= 4


def test_a_wrong_largest_timestamp_is_corrected(partition):
    data = batch(b"1", b"2", timestamp=NOW)
    records.set_max_timestamp(data, NOW + 1000)
    partition.append(data, NOW)
    assert partition.max_timestamp == NOW and records.valid(data) and records.header(data).max_timestamp == NOW


def test_lengths_are_walked_to_the_end(partition):
    data = batch(*[bytes(100)] * 200)
    broken = bytearray(data) + b"\0"
    broken[8:12] = (len(broken) - 12).to_bytes(4, "big")
    records.seal(broken)
    with pytest.raises(InvalidRecord, match="1 bytes follow"):
        partition.append(broken, NOW)
    assert partition.end_offset == 0
