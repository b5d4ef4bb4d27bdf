"""Compaction: the newest message of each key stays, with its offset; nothing else has to."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.log import StorageError, compaction, failpoints
from millstream.log.compaction import Newest, Transactions
from millstream.log.index import Aborted
from millstream.protocol import records
from millstream.protocol.records import Record
from millstream.protocol.walk import fingerprint
from tests.log.logs import (
    NOW,
    batch,
    batches,
    consume,
    content,
    crash,
    fill,
    keyed,
    maintain,
    open_log,
    state,
    values,
)

CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
HOUR = 3_600_000


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture
def partition(log):
    return log.create("table", 1, CONFIG).partitions[0]


def put(partition, *pairs, now=NOW, **options):
    return partition.append(keyed(*pairs, timestamp=now, **options), now)


def roll(partition, now=NOW):
    """Close the active segment, as the next append would when it is full."""
    with partition._lock:
        if partition.segments[-1].size:
            partition._roll(now)


def stored(partition):
    """Every batch that is there, with its header."""
    found, offset = [], partition.start_offset
    while True:
        read = partition.read(offset, 100_000)
        found += [(h, bytes(data)) for h, data in batches(content(read)) if h.last_offset >= offset]
        if read.next_offset == offset:
            return found
        offset = read.next_offset


def test_the_newest_of_each_key_stays_at_its_offset(log, partition):
    for i in range(100):
        put(partition, (b"k%d" % (i % 7), b"%03d" % i + bytes(30)))
    roll(partition)
    before = {record.offset: record for record in consume(partition)}
    size = partition.size
    maintain(log)
    after = consume(partition)
    assert [record.offset for record in after] == list(range(93, 100))
    assert all(before[record.offset] == record for record in after)
    assert partition.size < size / 5
    assert (partition.start_offset, partition.end_offset, partition.cleaned_offset) == (0, 100, 100)
    assert partition.read(40, 1000).slices
    assert put(partition, (b"k", b"next")).base_offset == 100


def test_the_active_segment_is_left_alone(log, partition):
    for _ in range(3):
        put(partition, (b"k", b"v"))
    maintain(log)
    assert len(consume(partition)) == 3


@pytest.mark.parametrize("codec", range(5))
def test_batches_are_cut_in_every_codec_and_keep_headers(log, partition, codec):
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    data = records.build([(b"x", b"old"), (b"y", b"stays", headers), (b"x", b"new")], NOW, codec=codec)
    partition.append(data, NOW)
    put(partition, (b"z", b"1"), codec=codec)
    roll(partition)
    maintain(log)
    assert consume(partition) == [
        Record(1, NOW, b"y", b"stays", tuple(headers)),
        Record(2, NOW, b"x", b"new"),
        Record(3, NOW, b"z", b"1"),
    ]
    (first, _), _ = stored(partition)
    assert (first.base_offset, first.last_offset, first.record_count, first.codec) == (0, 2, 2, codec)


def test_log_append_time_stays(log):
    partition = log.create("t", 1, {**CONFIG, "message.timestamp.type": "LogAppendTime"}).partitions[0]
    partition.append(keyed((b"x", b"1"), (b"y", b"2"), timestamp=5), NOW)
    partition.append(keyed((b"x", b"3"), timestamp=6), NOW + 1)
    roll(partition)
    maintain(log)
    assert [(r.offset, r.timestamp) for r in consume(partition)] == [(1, NOW), (2, NOW + 1)]


def test_tombstones_stay_for_delete_retention_and_then_go(log, partition):
    put(partition, (b"x", b"1"))
    put(partition, (b"y", b"1"))
    put(partition, (b"x", None))
    roll(partition)
    maintain(log)
    assert [(r.key, r.value, r.timestamp) for r in consume(partition)] == [(b"y", b"1", NOW), (b"x", None, NOW)]
    assert [h.delete_horizon for h, _ in stored(partition)] == [None, NOW + 1000]
    for now, left in ((NOW + 999, 3), (NOW + 1000, 3)):
        put(partition, (b"z", b"%d" % now))
        roll(partition)
        maintain(log, now)
        assert len(consume(partition)) == left - (now == NOW + 1000)
    assert state(consume(partition)) == {b"y": b"1", b"z": b"%d" % (NOW + 1000)}


def test_min_compaction_lag(log):
    partition = log.create("t", 1, {**CONFIG, "min.compaction.lag.ms": "1000"}).partitions[0]
    for i in range(4):
        put(partition, (b"x", b"%d" % i), now=NOW + i * 400)
        roll(partition, NOW + i * 400)
    maintain(log, NOW + 1400)
    assert values(consume(partition)) == [b"1", b"2", b"3"]
    maintain(log, NOW + 5000)
    assert values(consume(partition)) == [b"3"]


def test_max_compaction_lag(log):
    config = {**CONFIG, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
    partition = log.create("t", 1, config).partitions[0]
    put(partition, (b"x", b"1"))
    put(partition, (b"x", b"2"))
    maintain(log, NOW + 1000)
    assert len(consume(partition)) == 2
    maintain(log, NOW + 1001)
    assert values(consume(partition)) == [b"2"]


def test_the_dirty_ratio(log):
    partition = log.create("t", 1, {**CONFIG, "min.cleanable.dirty.ratio": "0.5"}).partitions[0]
    for i in range(10):
        put(partition, (b"%d" % i, b"v"))
    roll(partition)
    maintain(log)
    assert partition.cleaned_offset == 10
    put(partition, (b"0", b"v"))
    roll(partition)
    maintain(log)
    assert partition.cleaned_offset == 10
    for i in range(12):
        put(partition, (b"%d" % (i % 10), b"v"))
    roll(partition)
    maintain(log)
    assert partition.cleaned_offset == 23


def test_small_segments_are_joined(log, partition):
    for i in range(100):
        put(partition, (b"k%d" % i, b"v"))
        if i % 2:
            roll(partition)
    assert len(partition.segments) == 51
    maintain(log)
    assert len(partition.segments) < 20
    for _ in range(2):
        for i in range(90):
            put(partition, (b"k%d" % i, b"w"))
        roll(partition)
        maintain(log)
    assert len(consume(partition)) == 100


def test_memory_is_bounded_and_rounds_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "BYTES_PER_KEY", 65536 // 8)
    with open_log(tmp_path / "log", **{"log.cleaner.dedupe.buffer.size": "65536"}) as log:
        partition = log.create("t", 1, {**CONFIG, "min.cleanable.dirty.ratio": "0"}).partitions[0]
        largest = []
        real = Newest.count
        monkeypatch.setattr(Newest, "count", lambda self, batch: (real(self, batch), largest.append(len(self))))
        for i in range(300):
            put(partition, (b"a rather long key number %d" % (i % 40), b"%d" % i))
        roll(partition)
        maintain(log)
        assert max(largest) <= 8
        assert partition.cleaned_offset == 300
        # Each round sees the keys of its own part: what a later one superseded went in a later round.
        assert state(consume(partition)) == {
            b"a rather long key number %d" % (i % 40): b"%d" % i for i in range(260, 300)
        }


MANY_KEYS = """
import sys, time
from pathlib import Path
from millstream.log import Log
from millstream.protocol import records

NOW, KEYS = 1_760_000_000_000, 180_000
config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0"}
with Log(Path(sys.argv[1]), {"log.cleaner.dedupe.buffer.size": sys.argv[2]}, clock=lambda: NOW / 1000) as log:
    partition = log.create("t", 1, config).partitions[0]
    for value in (b"old", b"new"):
        for first in range(0, KEYS, 500):
            keys = [(b"a key of twenty-two %07d" % i, value) for i in range(first, first + 500)]
            partition.append(records.build(keys, NOW), NOW)
    with partition._lock:
        partition._roll(NOW)

    def peak():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again here
    before = peak()
    rounds = cleaned = 0
    while log.maintain(NOW):
        rounds, cleaned = rounds + (partition.cleaned_offset > cleaned), partition.cleaned_offset
    after, found, offset = peak(), 0, 0
    while offset < partition.end_offset:
        read = partition.read(offset, 1 << 20)
        for piece in read.slices:
            import os
            data = os.pread(piece.file, piece.size, piece.position)
            for position, head in records.headers(data):
                for record in records.records(data[position : position + head.size]):
                    found += 1
                    assert record.value == b"new", record
        offset = read.next_offset
    assert found == KEYS and cleaned == 2 * KEYS
print(rounds, after - before)
"""


@pytest.mark.system
def test_memory_is_bounded_however_many_keys(tmp_path):
    """180,000 keys in the memory for 20,000 of them: more rounds instead of more memory, and the same result."""
    found = {}
    for budget in (4 << 20, 128 << 20):
        command = [sys.executable, "-c", MANY_KEYS, str(tmp_path / str(budget)), str(budget)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        found[budget] = [int(word) for word in done.stdout.split()]
    (many, small), (once, large) = found.values()
    assert many > 5 and once == 1
    assert small < 14 << 20, f"{small} bytes for a budget of 4 MiB"
    assert large > 20 << 20, "this many keys do not need much memory, so that the bound has not been tried"


def test_a_full_disk_leaves_everything_as_it_is(log, partition, monkeypatch):
    for i in range(30):
        put(partition, (b"k%d" % (i % 3), b"%d" % i))
    roll(partition)
    partition.checkpoint()
    expected = state(consume(partition))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "write_all", full)
        with pytest.raises(StorageError, match="nothing is lost") as caught:
            compaction.compact(partition, NOW, partition.flush)
        assert caught.value.code == 56
        assert not list(partition.folder.glob("*.cleaned")) and partition.cleaned_offset == 0
        assert state(consume(partition)) == expected
        put(partition, (b"k0", b"goes on"))
    maintain(log)
    assert partition.cleaned_offset == 30
    assert state(consume(partition)) == {**expected, b"k0": b"goes on"}


def test_keys_across_transactions(log, partition):
    """The newest committed record of a key stays, whichever transaction ended first; never one that was aborted."""
    send(partition, 1, 0, (b"k", b"first begun, last committed"), (b"only", b"1"))
    send(partition, 2, 0, (b"k", b"newer offset"), (b"l", b"1"))
    send(partition, 3, 0, (b"k", b"aborted"), (b"l", b"aborted"))
    finish(partition, 2, True)
    finish(partition, 3, False)
    finish(partition, 1, True)
    send(partition, 2, 2, (b"l", b"2"))
    finish(partition, 2, True)
    put(partition, (b"m", b"1"))
    roll(partition)
    maintain(log)
    expected = {b"k": b"newer offset", b"only": b"1", b"l": b"2", b"m": b"1"}
    assert state(consume(partition, committed=True)) == expected == state(consume(partition))
    assert len(consume(partition)) == 4, "of each key one record"


def test_a_batch_with_more_keys_than_fit_is_still_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "BYTES_PER_KEY", 65536)
    with open_log(tmp_path / "log", **{"log.cleaner.dedupe.buffer.size": "65536"}) as log:
        partition = log.create("t", 1, {**CONFIG, "min.cleanable.dirty.ratio": "0"}).partitions[0]
        for i in range(3):
            put(partition, *[(b"%d" % k, b"%d" % i) for k in range(5)])
        roll(partition)
        maintain(log)
        assert partition.cleaned_offset == 15
        assert state(consume(partition)) == {b"%d" % k: b"2" for k in range(5)}


def test_readers_go_on_in_what_was_replaced(log, partition):
    for i in range(60):
        put(partition, (b"k", b"%d" % i))
    roll(partition)
    held = partition.read(0, 500)
    while partition.read(40, 1).slices and log.maintain(NOW):
        pass
    data = content(held)
    assert [r.offset for _, b in batches(data) for r in records.records(b)] == list(range(held.next_offset))
    assert values(consume(partition)) == [b"59"]


def test_an_old_reader_of_a_segment_that_was_never_opened(log, partition):
    # The segment's file is not open when compaction renames another one over it.
    for i in range(60):
        put(partition, (b"k", b"%d" % i))
    roll(partition)
    log.maintain(NOW)
    old = list(partition.segments)
    assert old[0].file is None
    maintain(log)
    file, _ = log._opened.get(old[0])
    header = records.header(os.pread(file.fd, 61, 0))
    assert (header.base_offset, header.record_count) == (0, 1)


def test_damage_ends_compaction_but_nothing_else(log, partition):
    for i in range(60):
        put(partition, (b"k", b"%d" % i + bytes(30)))
    roll(partition)
    victim = partition.segments[3]
    with open(victim.path, "r+b") as file:
        file.seek(80)
        file.write(b"!")
    before = [s.path for s in partition.segments]
    maintain(log)
    assert "wrong checksum" in partition.uncleanable
    assert [s.path for s in partition.segments] == before
    put(partition, (b"k", b"goes on"))
    assert values(consume(partition, victim.end_offset))[-1] == b"goes on"


def test_both_policies(log):
    partition = log.create("t", 1, {**CONFIG, "cleanup.policy": "compact,delete", "retention.ms": "5000"}).partitions[0]
    put(partition, (b"old", b"1"), now=NOW - 10_000)
    roll(partition)
    for i in range(10):
        put(partition, (b"k", b"%d" % i))
    roll(partition)
    maintain(log)
    assert values(consume(partition)) == [b"9"]
    assert partition.start_offset == 1
    maintain(log, NOW + 6000)
    assert consume(partition) == []


# Producers and transactions


def send(partition, producer_id, sequence, *pairs, transactional=True, now=NOW):
    return put(
        partition,
        *pairs,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
        now=now,
    )


def finish(partition, producer_id, commit, now=NOW):
    marker = records.build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp=now)
    return partition.append(marker, now, internal=True)


def test_the_last_batch_of_a_producer_stays_without_records(tmp_path):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, CONFIG).partitions[0]
    send(partition, 1, 0, (b"k", b"1"), transactional=False)
    send(partition, 1, 1, (b"k", b"2"), transactional=False)
    put(partition, (b"k", b"3"))
    put(partition, (b"l", b"4"))
    roll(partition)
    maintain(log)
    kept = [(h.base_offset, h.record_count, h.base_sequence) for h, _ in stored(partition)]
    assert kept == [(1, 0, 1), (2, 1, -1), (3, 1, -1)]
    assert values(consume(partition)) == [b"3", b"4"]
    crash(log)
    for path in (tmp_path / "log" / "topics" / "t" / "0").glob("*.snapshot"):
        path.unlink()
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert send(partition, 1, 1, (b"k", b"2"), transactional=False).duplicate
        assert send(partition, 1, 2, (b"k", b"5"), transactional=False).base_offset == 4


def test_aborted_records_go_and_do_not_supersede(log, partition):
    put(partition, (b"k", b"committed before"))
    send(partition, 1, 0, (b"k", b"aborted"))
    finish(partition, 1, False)
    send(partition, 1, 1, (b"l", b"committed"))
    finish(partition, 1, True)
    put(partition, (b"m", b"1"))
    roll(partition)
    maintain(log)
    for committed in (True, False):
        assert values(consume(partition, committed=committed)) == [b"committed before", b"committed", b"1"]
    assert [(h.control, h.delete_horizon) for h, _ in stored(partition)][1] == (True, None)
    # The next round finds the abort marker without records and gives it a horizon, the one after lets it go.
    for step in (1, 2):
        now = NOW + step * 2000
        put(partition, (b"m", b"%d" % step), now=now)
        roll(partition, now)
        maintain(log, now)
    assert [h.base_offset for h, _ in stored(partition) if h.control] == [4]
    assert state(consume(partition, committed=True)) == {
        b"k": b"committed before",
        b"l": b"committed",
        b"m": b"2",
    }


def test_an_open_transaction_stops_compaction(log, partition):
    put(partition, (b"k", b"1"))
    put(partition, (b"k", b"2"))
    roll(partition)
    send(partition, 1, 0, (b"k", b"open"))
    roll(partition)
    put(partition, (b"k", b"3"))
    roll(partition)
    maintain(log)
    assert values(consume(partition)) == [b"2", b"open", b"3"]
    finish(partition, 1, True)
    roll(partition)
    maintain(log)
    assert values(consume(partition)) == [b"3"]


def test_transactions_know_what_was_aborted():
    def head(producer_id, first, last, control=False):
        attributes = records.TRANSACTIONAL | (records.CONTROL if control else 0)
        return (first, 0, 0, 2, 0, attributes, last - first, 0, 0, producer_id, 0, 0, 1)

    marker = {c: records.build_marker(1, 0, commit=c, coordinator_epoch=0, timestamp=1) for c in (True, False)}
    seen = Transactions([Aborted(1, 0, 5, 6), Aborted(2, 3, 9, 10)])
    assert seen.data(head(1, 0, 1))
    assert not seen.data(head(3, 2, 2))
    assert seen.data(head(2, 3, 4))
    assert not seen.control(head(1, 5, 5, True), marker[False])
    assert not seen.data(head(1, 6, 6))
    assert not seen.control(head(3, 7, 7, True), marker[True])
    assert seen.control(head(3, 8, 8, True), marker[True])
    assert not seen.control(head(2, 9, 9, True), marker[False])
    assert seen.kept == [Aborted(1, 0, 5, 6), Aborted(2, 3, 9, 10)]


def test_long_keys_are_hashed_apart():
    newest = Newest(10, 5)
    newest.count(keyed((b"k" * 16, b""), (b"k" * 17, b""), (fingerprint(b"k" * 16)[:15], b""), base_offset=5))
    assert len(newest) == 3
    assert newest.superseded(b"k" * 16, 4)
    assert not newest.superseded(b"k" * 16, 5)
    assert not newest.superseded(b"other", 5)


def test_the_newest_of_each_key_are_marked(monkeypatch):
    monkeypatch.setattr(compaction, "MAX_MARKED", 8)
    newest = Newest(10, 5)
    newest.count(
        keyed((b"d", b"before"), *((bytes([k]), None if k == ord("b") else b"") for k in b"abccda"), base_offset=4)
    )
    newest.end = 14
    assert newest.marks(5, 7) == bytes([0, 2, 0])
    assert newest.marks(8, 10) == bytes([1, 1, 1])
    assert newest.marks(11, 12) == bytes([0, 0])
    assert newest.marks(4, 6) is None  # it begins before what was counted
    assert newest.marks(12, 13) is None  # more than are marked


def test_batches_that_stay_or_go_as_a_whole_are_not_looked_into_twice(log, monkeypatch):
    partition = log.create("t", 1, CONFIG).partitions[0]
    put(partition, (b"a", b"1"), (b"b", b"1"))  # all superseded
    put(partition, (b"a", b"2"), (b"c", b"2"))  # one of two
    put(partition, (b"d", b"3"), (b"f", b"3"), codec=3)  # all stay
    put(partition, (b"b", b"4"), (b"e", None))  # a tombstone, which gets its horizon
    put(partition, (b"a", b"5"))
    roll(partition)
    looked = []
    real = compaction.entries
    monkeypatch.setattr(
        compaction, "entries", lambda batch: looked.append(records.HEADER.unpack_from(batch)[0]) or real(batch)
    )
    maintain(log)
    # Those of which neither all nor nothing stays, and the tombstone's.
    assert looked == [2, 6]
    found = {record.key: record.value for record in consume(partition)}
    assert found == {b"a": b"5", b"b": b"4", b"c": b"2", b"d": b"3", b"e": None, b"f": b"3"}


def test_compaction_beside_appends_and_reads(tmp_path):
    with open_log(tmp_path / "log") as log:
        partition = log.create("t", 1, CONFIG).partitions[0]
        stop = threading.Event()
        trouble = []

        def work():
            try:
                while not stop.is_set():
                    log.maintain(NOW)
            except Exception as error:
                trouble.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        model = {}
        try:
            for i in range(400):
                key, value = b"k%d" % (i * i % 23), b"%d" % i
                put(partition, (key, value))
                model[key] = value
                if i % 40 == 39:
                    assert state(consume(partition)) == model
        finally:
            stop.set()
            thread.join()
        assert trouble == []
        assert partition.cleaned_offset > 0
        assert state(consume(partition)) == model


KEYS = st.sampled_from([b"a", b"b", b"c", b"a key of more than sixteen bytes"])
PAIRS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), min_size=1, max_size=4)
STEP = st.one_of(
    st.tuples(st.just("put"), PAIRS, st.sampled_from(range(5))),
    st.tuples(st.just("send"), PAIRS, st.integers(1, 3)),
    st.tuples(st.just("end"), st.booleans(), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 500, 2000]), st.none()),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("maintain"), st.none(), st.none()),
    st.tuples(st.just("crash"), st.none(), st.none()),
    st.tuples(st.just("close"), st.none(), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=50))
def test_random_histories_agree_with_a_table(tmp_path_factory, steps):
    """Whatever happens, reading committed from offset 0 builds the table that the committed writes build."""
    folder = tmp_path_factory.mktemp("table") / "log"
    log = open_log(folder)
    partition = log.create("t", 1, CONFIG).partitions[0]
    now = NOW
    written: dict[int, Record] = {}
    committed: list[tuple[int, bytes, bytes | None]] = []
    waiting: dict[int, list[tuple[int, bytes, bytes | None]]] = {1: [], 2: [], 3: []}
    sequences = {1: 0, 2: 0, 3: 0}
    for action, what, which in steps:
        if action in ("put", "send"):
            if action == "put":
                base = put(partition, *what, now=now, codec=which).base_offset
                target = committed
            else:
                base = send(partition, which, sequences[which], *what, now=now).base_offset
                sequences[which] += len(what)
                target = waiting[which]
            for i, (key, value) in enumerate(what):
                target.append((base + i, key, value))
                written[base + i] = Record(base + i, now, key, value)
        elif action == "end":
            if waiting[which]:
                finish(partition, which, what, now)
                if what:
                    committed += waiting[which]
                waiting[which] = []
        elif action == "wait":
            now += what
        elif action == "roll":
            roll(partition, now)
        elif action == "maintain":
            maintain(log, now)
        else:
            crash(log) if action == "crash" else log.close()
            log = open_log(folder)
            partition = log.topics["t"].partitions[0]
            assert not any("cut" in note for note in log.recovered)
    stable = min((w[0][0] for w in waiting.values() if w), default=partition.end_offset)
    assert partition.last_stable_offset == stable
    expected = {key: value for offset, key, value in sorted(committed) if offset < stable and value is not None}
    newest = {key: (offset, value) for offset, key, value in sorted(committed) if offset < stable}
    expected = {key: value for key, (_, value) in newest.items() if value is not None}
    found = consume(partition, committed=True)
    assert state(found) == expected
    assert all(written[record.offset] == record for record in found)
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    here = {record.offset for record in found}
    assert all(offset in here for offset, value in newest.values() if value is not None)
    for producer_id, sequence in sequences.items():
        if sequence:
            assert partition.producers[producer_id].last_sequence == sequence - 1
    log.close()


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_deletions_agree_with_a_list(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("ring") / "log"
    log = open_log(folder)
    partition = log.create("t", 1, {"internal.segment.bytes": "400", "retention.bytes": "2000"}).partitions[0]
    model: list[bytes] = []
    start = 0
    for _ in range(data.draw(st.integers(1, 8))):
        model += fill(partition, data.draw(st.integers(0, 20)))
        action = data.draw(st.sampled_from(["delete", "maintain", "crash", "close"]))
        if action == "delete" and model:
            start = partition.delete_before(data.draw(st.integers(start, len(model))))
        elif action == "maintain":
            maintain(log)
            assert partition.size <= 2400
        elif action in ("crash", "close"):
            crash(log) if action == "crash" else log.close()
            log = open_log(folder)
            partition = log.topics["t"].partitions[0]
        assert partition.start_offset >= start
        start = partition.start_offset
        assert partition.end_offset == len(model)
        assert values(consume(partition)) == model[start:]
    log.close()


def test_keyless_messages_go_when_a_topic_becomes_compacted(log):
    partition = log.create("t", 1, {"internal.segment.bytes": "600"}).partitions[0]
    partition.append(batch(b"no key", key=None), NOW)
    put(partition, (b"k", b"1"))
    roll(partition)
    log.configure("t", CONFIG)
    maintain(log)
    assert values(consume(partition)) == [b"1"]


def test_the_newer_record_is_on_disk_before_the_older_one_goes(partition, monkeypatch):
    put(partition, (b"k", b"old"))
    roll(partition)
    partition.flush()
    put(partition, (b"k", b"new"))
    roll(partition)
    partition._tidy()
    assert partition.flushed_offset == 1
    seen = []
    monkeypatch.setitem(failpoints.tripped, failpoints.CLEAN_DECIDED, lambda: seen.append(partition.flushed_offset))
    assert compaction.compact(partition, NOW + HOUR, partition.flush)
    assert seen and min(seen) == 2
    assert values(consume(partition)) == [b"new"]
