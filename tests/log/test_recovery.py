"""Opening after a crash: nothing acknowledged is lost, what is torn is cut, and it says so."""

import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log import CorruptMessage, checkpoint, recovery
from millstream.log.partition import Partition
from millstream.protocol import records
from tests.log.logs import NOW, SMALL, batch, consume, crash, fill, maintain, open_log, values


def crashed(folder, count=20, *, config=SMALL, tidy=False, close=False):
    """A log with one topic that was killed (or closed) after `count` appends; the values in it."""
    log = open_log(folder)
    partition = log.create("t", 1, config).partitions[0]
    expected = fill(partition, count)
    if tidy:
        maintain(log)
    log.close() if close else crash(log)
    return expected


def reopened(folder):
    log = open_log(folder)
    return log, log.topics["t"].partitions[0]


def works(log, partition, expected):
    """The partition holds `expected`, goes on from there, and a clean restart sees the same."""
    assert values(consume(partition)) == expected
    for i, record in enumerate(consume(partition)):
        assert partition.offset_for_time(NOW) in (None, (partition.start_offset, NOW)) or i
        assert record.offset == partition.start_offset + i or partition.segments[0].gaps
    end = partition.end_offset
    assert partition.append(batch(b"next"), NOW).base_offset == end
    assert values(consume(partition)) == [*expected, b"next"]
    folder = log.folder
    log.close()
    log, partition = reopened(folder)
    assert log.recovered == []
    assert values(consume(partition)) == [*expected, b"next"]
    log.close()


def test_a_clean_restart_scans_nothing(tmp_path, monkeypatch):
    expected = crashed(tmp_path / "log", close=True)
    monkeypatch.setattr(recovery, "survey", lambda *_: pytest.fail("scanned"))
    monkeypatch.setattr(recovery, "replay", lambda *_: pytest.fail("replayed"))
    log, partition = reopened(tmp_path / "log")
    works(log, partition, expected)


def test_the_clean_marker_is_gone_while_open(tmp_path):
    crashed(tmp_path / "log", close=True)
    assert (tmp_path / "log" / "clean").exists()
    log, _ = reopened(tmp_path / "log")
    assert not (tmp_path / "log" / "clean").exists()
    log.close()


def test_after_a_crash_nothing_is_lost_or_cut(tmp_path):
    expected = crashed(tmp_path / "log")
    log, partition = reopened(tmp_path / "log")
    assert not any("cut" in note for note in log.recovered)
    works(log, partition, expected)


def test_after_a_checkpoint_only_the_rest_is_scanned(tmp_path, monkeypatch):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1).partitions[0]
    expected = fill(partition, 50)
    partition.checkpoint()
    known = partition.size
    expected += fill(partition, 3)
    crash(log)
    begun = []
    real = recovery.survey
    monkeypatch.setattr(
        recovery, "survey", lambda fd, position, *rest: begun.append(position) or real(fd, position, *rest)
    )
    log, partition = reopened(tmp_path / "log")
    assert begun == [known]
    works(log, partition, expected)


def test_an_index_that_is_ahead_of_the_last_sync_is_not_trusted(tmp_path):
    expected = crashed(tmp_path / "log", close=True, config={})
    (tmp_path / "log" / "clean").unlink()
    folder = tmp_path / "log" / "topics" / "t" / "0"
    checkpoint.write(folder, checkpoint.Checkpoint(flushed=3), sync=True)
    with open(folder / "00000000000000000000.log", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    log, partition = reopened(tmp_path / "log")
    assert any("cut" in note for note in log.recovered)
    works(log, partition, expected[:-1])


def test_truncation_at_every_byte_of_the_tail(tmp_path):
    expected = crashed(tmp_path / "log", 9, config={"retention.ms": "-1"})
    path = tmp_path / "log" / "topics" / "t" / "0" / "00000000000000000000.log"
    whole = path.read_bytes()
    size = len(whole) // 9
    for length in range(len(whole) - 2 * size - 1, len(whole)):
        path.write_bytes(whole[:length])
        log, partition = reopened(tmp_path / "log")
        kept = length // size
        assert values(consume(partition)) == expected[:kept]
        assert partition.end_offset == kept
        assert any(f"cut {length - kept * size} bytes behind offset {kept}" in n for n in log.recovered) == bool(
            length % size
        )
        assert path.stat().st_size == kept * size
        assert partition.append(batch(b"next"), NOW).base_offset == kept
        crash(log)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_torn_tail_of_anything(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("torn") / "log"
    expected = crashed(folder, 12)
    path = max((folder / "topics" / "t" / "0").glob("*.log"))
    base = int(path.stem)
    whole = path.read_bytes()
    starts = [position for position, _ in records.headers(whole)]
    at = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.sampled_from([b"", bytes(300), b"\xff" * 300]) | st.binary(max_size=200))
    path.write_bytes(whole[:at] + junk)
    log, partition = reopened(folder)
    kept = base + sum(1 for a, b in zip(starts, [*starts[1:], len(whole)], strict=True) if b <= at)
    assert partition.end_offset >= kept
    assert values(consume(partition))[:kept] == expected[:kept]
    works(log, partition, expected[: partition.end_offset])


@pytest.mark.parametrize("tidy", [False, True])
@pytest.mark.parametrize("suffix", ["index", "snapshot"])
@pytest.mark.parametrize("how", ["missing", "cut", "flipped", "empty"])
@pytest.mark.parametrize("clean", [False, True])
def test_indexes_and_snapshots_can_be_lost(tmp_path, suffix, how, tidy, clean):
    expected = crashed(tmp_path / "log", tidy=tidy, close=clean)
    for path in (tmp_path / "log" / "topics" / "t" / "0").glob(f"*.{suffix}"):
        data = bytearray(path.read_bytes())
        if how == "missing":
            path.unlink()
        else:
            if how == "flipped":
                data[-1] ^= 1
            path.write_bytes({"cut": data[:-3], "flipped": data, "empty": b""}[how])
    log, partition = reopened(tmp_path / "log")
    works(log, partition, expected)


def test_leftovers_are_removed(tmp_path):
    expected = crashed(tmp_path / "log", tidy=True)
    folder = tmp_path / "log" / "topics" / "t" / "0"
    leftovers = ["checkpoint.tmp", "00000000000000000000.log.cleaned", "00000000000000000003.index.tmp"]
    for name in leftovers:
        (folder / name).write_bytes(b"half")
    (folder / "00000000000000000999.index").write_bytes(b"of no segment")
    (tmp_path / "log" / "building" / "half").mkdir()
    (tmp_path / "log" / "topics" / "t" / "topic.json.tmp").write_bytes(b"half")
    log, partition = reopened(tmp_path / "log")
    assert sum("leftover temporary file" in note for note in log.recovered) == 4
    assert not any((folder / name).exists() for name in [*leftovers, "00000000000000000999.index"])
    assert not (tmp_path / "log" / "building" / "half").exists()
    works(log, partition, expected)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version": 99}'])
def test_a_checkpoint_can_be_lost(tmp_path, content):
    expected = crashed(tmp_path / "log", tidy=True, close=True)
    path = tmp_path / "log" / "topics" / "t" / "0" / "checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    log, partition = reopened(tmp_path / "log")
    assert any("checkpoint: missing or damaged" in note for note in log.recovered)
    works(log, partition, expected)


def test_damage_in_the_middle_stays_and_what_follows_is_kept(tmp_path):
    expected = crashed(tmp_path / "log", config={"retention.ms": "-1"})
    path = tmp_path / "log" / "topics" / "t" / "0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 20 * 7 + 80] ^= 1
    path.write_bytes(data)
    log, partition = reopened(tmp_path / "log")
    assert any("left in place" in note for note in log.recovered)
    assert values(consume(partition, 8)) == expected[8:]
    with pytest.raises(CorruptMessage):
        partition.read(7, 100)
    assert partition.end_offset == 20
    partition.append(batch(b"next"), NOW)
    crash(log)
    log, partition = reopened(tmp_path / "log")
    assert values(consume(partition, 8)) == [*expected[8:], b"next"]
    log.close()


def test_all_segments_gone(tmp_path):
    crashed(tmp_path / "log", close=True)
    for path in (tmp_path / "log" / "topics" / "t" / "0").glob("0*"):
        path.unlink()
    log, partition = reopened(tmp_path / "log")
    assert any("all segments are gone" in note for note in log.recovered)
    assert (partition.start_offset, partition.end_offset) == (20, 20)
    works(log, partition, [])


def test_a_partitions_folder_is_gone(tmp_path):
    crashed(tmp_path / "log", close=True)
    shutil.rmtree(tmp_path / "log" / "topics" / "t" / "0")
    log, partition = reopened(tmp_path / "log")
    assert any("made again" in note for note in log.recovered)
    assert values(consume(partition)) == []
    log.close()


def produce(partition: Partition, producer_id: int, sequence: int, *, transactional=True) -> None:
    partition.append(
        batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=transactional), NOW
    )


def finish(partition: Partition, producer_id: int, *, commit: bool) -> None:
    partition.append(
        records.build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp=NOW), NOW, internal=True
    )


@pytest.mark.parametrize("harm", ["none", "crash", "indexes", "snapshots", "both"])
@pytest.mark.parametrize("tidy", [False, True])
def test_producers_and_transactions_come_back(tmp_path, harm, tidy):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, SMALL).partitions[0]
    for i in range(12):
        produce(partition, 1, i)
        produce(partition, 2, i)
        if i % 3 == 2:
            finish(partition, 1, commit=i % 2 == 0)
    produce(partition, 3, 0, transactional=False)
    finish(partition, 2, commit=False)
    produce(partition, 4, 0)
    if tidy:
        maintain(log)
    fill(partition, 5)
    before = dict(partition.producers)
    committed, stable = consume(partition, committed=True), partition.last_stable_offset
    aborted = partition.read(0, 100_000, committed=True).aborted
    assert aborted
    log.close() if harm == "none" else crash(log)
    folder = tmp_path / "log" / "topics" / "t" / "0"
    for path in list(folder.iterdir()):
        if (path.suffix == ".index" and harm in ("indexes", "both")) or (
            path.suffix == ".snapshot" and harm in ("snapshots", "both")
        ):
            path.unlink()
    log, partition = reopened(tmp_path / "log")
    # The log's clock at their last write is not in the batches: recovery takes the present.
    assert {i: p._replace(seen=0) for i, p in partition.producers.items()} == {
        i: p._replace(seen=0) for i, p in before.items()
    }
    assert partition.last_stable_offset == stable == 30
    assert consume(partition, committed=True) == committed
    assert partition.read(0, 100_000, committed=True).aborted == aborted
    assert partition.append(batch(producer_id=3, producer_epoch=0, base_sequence=0), NOW).duplicate
    finish(partition, 4, commit=True)
    assert partition.last_stable_offset == partition.end_offset
    log.close()


def test_an_index_that_is_damaged_while_running_is_computed_again(tmp_path):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, SMALL).partitions[0]
    for i in range(20):
        produce(partition, 1, i)
        finish(partition, 1, commit=i % 2 == 0)
    maintain(log)
    expected = consume(partition, committed=True)
    for segment in partition.segments[:-1]:
        log._opened.drop(segment)
        data = bytearray(segment.index_path.read_bytes())
        data[-1] ^= 1
        segment.index_path.write_bytes(data)
    assert consume(partition, committed=True) == expected
    log.close()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_crashes_agree_with_a_list(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("crashes") / "log"
    log = open_log(folder)
    partition = log.create("t", 1, SMALL).partitions[0]
    model: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 6))):
        model += fill(partition, data.draw(st.integers(0, 12)))
        what = data.draw(st.sampled_from(["nothing", "maintain", "checkpoint", "flush"]))
        if what == "maintain":
            maintain(log)
        elif what == "checkpoint":
            partition.checkpoint()
        elif what == "flush":
            partition.flush()
        if data.draw(st.booleans()):
            crash(log)
        else:
            log.close()
        log, partition = reopened(folder)
        assert partition.end_offset == len(model)
        assert values(consume(partition)) == model
    log.close()
