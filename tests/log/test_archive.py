"""The archive: readers do not notice where a segment is; a crash at any place leaves each record readable once."""

import os
import sys
from itertools import pairwise
from random import Random

import pytest

from millstream.log import CorruptMessage, InvalidConfig, NotHere, StorageError, failpoints, fetched, verify
from millstream.log import archive as archives
from millstream.log.archive import wrong_url
from millstream.log.config import TopicConfig
from millstream.log.fetched import MIN_CACHED, Cache, Extent, extent_at
from millstream.log.files import File
from millstream.log.index import Index
from millstream.log.segment import Segment
from millstream.protocol import records
from millstream.protocol.records import build_marker
from tests.log.logs import NOW, Spoiling, batch, batches, consume, content, crash, fill, maintain, open_log, values

SEGMENT = {"internal.segment.bytes": "600", "index.interval.bytes": "100", "retention.ms": "-1"}

fsspec = pytest.importorskip("fsspec", reason="the archive needs fsspec: pip install 'millstream[archive]'")


@pytest.fixture(scope="session")
def bucket():
    """An object store over its own protocol."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fsspec.config.conf["s3"] = {"endpoint_url": f"http://{host}:{port}", "key": "k", "secret": "s"}
    fsspec.filesystem("s3").mkdir("bucket")
    yield "s3://bucket"
    server.stop()


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=pytest.mark.system)])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/archive"
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return f"memory://{tmp_path.name}"


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


def config(url, **more):
    return {
        **SEGMENT,
        "millstream.archive": url,
        "local.retention.bytes": "0",
        **{k.replace("_", "."): v for k, v in more.items()},
    }


def settle(log, now=NOW):
    """Everything that maintenance and the archive have to do."""
    for _ in range(1000):
        busy = log.archive(now)
        if not log.maintain(now) and not busy:
            return
    raise AssertionError("the archive still finds something to do")


def read_all(partition, **options):
    """As a consumer that fetches what is not here."""
    fetched = 0
    while True:
        try:
            return consume(partition, **options), fetched
        except NotHere as missing:
            partition.fetch(missing)
            fetched += 1


def bring(partition, segment):
    """Fetch a segment that is small enough for one fetch."""
    with pytest.raises(NotHere) as missing:
        partition.read(segment.base, 1)
    partition.fetch(missing.value)


def objects(url):
    fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return sorted(name for name in fs.find(path)) if fs.exists(path) else []


def test_segments_leave_and_are_read_back(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    assert len(list(partition.folder.glob("*.log"))) == 1 and len(partition.segments) > 8
    assert partition.start_offset == 0 < partition.local_start_offset == partition.archived_offset
    assert len(objects(url)) == 2 * (len(partition.segments) - 1)
    with pytest.raises(NotHere):
        partition.read(0, 1000)
    found, fetched = read_all(partition)
    assert values(found) == sent and fetched == len(partition.segments) - 1
    assert read_all(partition) == (found, 0)
    for offset in (0, 7, 31, 59):
        assert values(read_all(partition, offset=offset, max_bytes=1)[0]) == sent[offset:]


def test_a_read_stops_before_what_is_not_here(log, url):
    partition = log.create("t", 1, config(url, local_retention_bytes="1500")).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    assert 0 < partition.local_start_offset < 55
    first = partition.segments[0]
    bring(partition, first)
    read = partition.read(0, 10**6)
    assert read.next_offset == first.end_offset and content(read)
    assert values(read_all(partition)[0]) == sent


def test_by_time_and_transactions(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    for i in range(60):
        transaction = i // 10
        partition.append(
            batch(
                b"%d" % i,
                timestamp=NOW + i,
                producer_id=1,
                producer_epoch=0,
                base_sequence=i,
                transactional=True,
            ),
            NOW,
        )
        if i % 10 == 9:
            marker = build_marker(1, 0, commit=transaction % 2 == 0, coordinator_epoch=0, timestamp=NOW + i)
            partition.append(marker, NOW, internal=True)
    settle(log)
    partition.segments[1].index_path.unlink()  # the one in the archive does as well
    found, _ = read_all(partition, committed=True)
    assert values(found) == [b"%d" % i for i in range(60) if i // 10 % 2 == 0]

    def by_time():
        try:
            return partition.offset_for_time(NOW + 3)
        except NotHere as missing:
            partition.fetch(missing)
            return by_time()

    assert by_time() == (3, NOW + 3)


def test_a_restart_and_a_crash_find_it_again(tmp_path, url):
    log = open_log(tmp_path / "log")
    sent = fill(log.create("t", 1, config(url)).partitions[0], 60)
    settle(log)
    for how in (lambda log: log.close(), crash, crash):
        how(log)
        log = open_log(tmp_path / "log")
        partition = log.topics["t"].partitions[0]
        assert partition.start_offset == 0 and log.recovered == []
        assert values(read_all(partition)[0]) == sent
        sent += fill(partition, 15)
        settle(log)
    log.close()
    assert verify(tmp_path / "log") == []


def test_total_retention_deletes_from_the_archive(log, url):
    partition = log.create("t", 1, config(url, retention_bytes="3000")).partitions[0]
    sent = fill(partition, 60)
    log.archive(NOW)
    settle(log)
    assert partition.start_offset > 0
    total = sum(segment.size for segment in partition.segments)
    assert 3000 <= total < 3700
    assert len(objects(url)) == 2 * (len(partition.segments) - 1)
    assert values(read_all(partition)[0]) == sent[partition.start_offset :]
    partition.delete_before(-1)
    settle(log)
    assert objects(url) == []


def test_local_retention_by_time(log, url):
    partition = log.create("t", 1, config(url, local_retention_bytes="-2", local_retention_ms="1000")).partitions[0]
    fill(partition, 60)
    settle(log)
    assert partition.local_start_offset == 0 and partition.archived_offset > 50
    settle(log, NOW + 1001)
    assert partition.local_start_offset == partition.archived_offset


def test_nothing_is_freed_before_it_is_copied(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    maintain(log)
    assert partition.local_start_offset == 0 and len(list(partition.folder.glob("*.log"))) == len(partition.segments)


def test_copies_in_a_folder_are_synced_before_the_note_relies_on_them(log, tmp_path, monkeypatch):
    """A power cut must not take what is no longer here."""
    synced, noted, real = set(), [], os.fsync

    def fsync(fd):
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    def write(folder, segments, really=archives.write):
        noted.append(({each.base for each in segments}, set(synced)))
        really(folder, segments)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(archives, "write", write)
    url = f"file://{tmp_path}/archive"
    fill(log.create("t", 1, config(url)).partitions[0], 30)
    settle(log)
    copies = {int(os.path.basename(name).split(".")[0]): name for name in objects(url) if name.endswith(".log")}
    assert copies and noted
    for bases, before in noted:
        for base in bases:
            copy = copies[base]
            folders = {
                str(each)
                for each in (tmp_path / "archive", tmp_path, *map(os.path.dirname, (copy, os.path.dirname(copy))))
            }
            assert {copy, copy.removesuffix("log") + "index"} | folders <= before


def test_a_deleted_topic_leaves_the_archive(log, url):
    fill(log.create("t", 2, config(url)).partitions[1], 60)
    settle(log)
    assert objects(url)
    log.delete("t")
    settle(log)
    assert objects(url) == [] and list((log.folder / "deleted").iterdir()) == []


def test_an_archive_that_refuses(log, url, monkeypatch):
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    real = archives._filesystem

    def refuse(_url):
        raise archives.ArchiveError("the archive is on holiday")

    monkeypatch.setattr(archives, "_filesystem", refuse)
    settle(log)
    assert values(consume(partition)) == sent and partition.archived_offset == 0
    monkeypatch.setattr(archives, "_filesystem", real)
    settle(log, NOW + 1)
    assert partition.archived_offset == 0  # not at once
    settle(log, NOW + archives.RETRY_MS)
    assert partition.archived_offset > 50
    monkeypatch.setattr(archives, "_filesystem", refuse)
    with pytest.raises(StorageError, match="holiday"):
        bring(partition, partition.segments[0])


def test_a_damaged_copy_is_not_served(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    settle(log)
    fs, path = fsspec.core.url_to_fs(partition.segments[0].remote.url)
    name = f"{path}/{0:020d}.log"
    data = bytearray(fs.cat_file(name))
    data[70] ^= 1
    fs.pipe_file(name, bytes(data))
    bring(partition, partition.segments[0])
    bring(partition, partition.segments[0])  # it might have been damaged on its way
    for _ in range(3):
        with pytest.raises(CorruptMessage, match="checksum"):
            partition.read(0, 1000)
    fs.pipe_file(f"{path}/{partition.segments[1].base:020d}.log", b"short")
    with pytest.raises(StorageError, match="5 of"):
        bring(partition, partition.segments[1])


# Of the first batch: its offset (not under the checksum), length, checksum, last offset, and its record.
@pytest.mark.parametrize("position", [7, 8, 11, 18, 26, 75])
def test_what_was_damaged_on_its_way_is_fetched_again(position, log, url, monkeypatch):
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    spoiling = Spoiling(monkeypatch, position, times=1)
    assert values(read_all(partition)[0]) == sent
    assert set(spoiling.transfers.values()) == {2} and len(spoiling.transfers) == len(partition.segments) - 1


@pytest.mark.parametrize("position", [7, 8, 18, 75])
def test_a_search_by_time_fetches_again_what_was_damaged_on_its_way(position, log, url, monkeypatch):
    partition = log.create("t", 1, config(url)).partitions[0]
    for i in range(60):
        partition.append(batch(b"%d" % i, timestamp=NOW + i), NOW)
    settle(log)
    spoiling = Spoiling(monkeypatch, position, times=1)
    first = partition.segments[0]
    for _ in range(2):
        with pytest.raises(NotHere) as missing:
            partition.offset_for_time(NOW + 1)
        partition.fetch(missing.value)
    assert partition.offset_for_time(NOW + 1) == (1, NOW + 1) and spoiling.transfers == {first.base: 2}


def test_what_is_damaged_in_the_store_is_fetched_again_once_in_a_while(log, url, monkeypatch):
    """Not with every read; but a store that has been mended is noticed without a restart."""
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    settle(log)
    clock = [0.0]
    partition._opened.cache.clock = lambda: clock[0]
    spoiling = Spoiling(monkeypatch, 75, times=3)
    bring(partition, partition.segments[0])
    bring(partition, partition.segments[0])
    for clock[0] in (0.0, 1.0, fetched.AGAIN_SECONDS - 1):
        with pytest.raises(CorruptMessage, match="checksum"):
            partition.read(0, 1000)
    clock[0] = fetched.AGAIN_SECONDS
    bring(partition, partition.segments[0])
    assert spoiling.transfers == {0: 3}
    for clock[0] in (fetched.AGAIN_SECONDS, 2 * fetched.AGAIN_SECONDS - 1):
        with pytest.raises(CorruptMessage, match="checksum"):
            partition.read(0, 1000)
    clock[0] = 2 * fetched.AGAIN_SECONDS
    bring(partition, partition.segments[0])
    assert partition.read(0, 1000).next_offset > 0 and spoiling.transfers == {0: 4}


def test_a_lost_index_says_so_when_it_matters(tmp_path, url):
    log = open_log(tmp_path / "log")
    sent = fill(log.create("t", 1, config(url)).partitions[0], 60)
    settle(log)
    log.close()
    log = open_log(tmp_path / "log")
    partition = log.topics["t"].partitions[0]
    first = partition.segments[0]
    first.index_path.unlink()
    fs, path = fsspec.core.url_to_fs(first.remote.url)
    fs.rm_file(f"{path}/{0:020d}.index")
    assert values(read_all(partition)[0]) == sent
    second = partition.segments[1]
    second.index_path.unlink()
    fs.rm_file(f"{path}/{second.base:020d}.index")
    second.remote = archives.Entry(
        **{**{f: getattr(second.remote, f) for f in second.remote.__struct_fields__}, "aborted": 1}
    )
    partition._opened.drop(second)
    with pytest.raises(StorageError, match="aborted"):
        bring(partition, second)
    assert first.index_path.exists(), "it has been computed again"
    log.close()


def test_the_cache_is_bounded(tmp_path, url):
    with open_log(tmp_path / "log", millstream_archive_cache_bytes="3000") as log:
        partition = log.create("t", 1, config(url)).partitions[0]
        sent = fill(partition, 60)
        settle(log)
        cache = partition._opened.cache
        offset, fetched, data = 0, 0, b""
        while offset < 60:
            try:
                read = partition.read(offset, 1000)
            except NotHere as missing:
                partition.fetch(missing)
                fetched += 1
                assert 0 < cache.bytes <= 3000 and len(cache) <= 6
            else:
                offset, data = read.next_offset, data + content(read)
        assert fetched == len(partition.segments) - 1 > 8 and all(value in data for value in sent)
        assert list((tmp_path / "log" / "fetched").iterdir()) == []


def test_what_is_larger_than_the_cache_is_kept_for_who_waits(tmp_path):
    segment = Segment(tmp_path, 0)
    cache = Cache(tmp_path, 10)
    extents = [Extent(segment, i * 100, i * 100 + 100) for i in range(MIN_CACHED + 2)]
    for each in extents:
        cache.put(each, File(tmp_path, os.O_RDONLY))
    assert len(cache) == MIN_CACHED and cache.bytes == 100 * MIN_CACHED
    assert cache.get(extents[-1]) and extents[0] not in cache
    with pytest.raises(NotHere):
        cache.get(extents[0])
    cache.drop(segment)
    assert len(cache) == cache.bytes == 0


def test_extents_meet_at_batches_that_the_index_notes(tmp_path, monkeypatch):
    """Random indexes, batches larger than an extent among them: extents cover the segment, once."""
    monkeypatch.setattr(fetched, "EXTENT", 1000)
    chance = Random(4)
    for _ in range(300):
        segment = Segment(tmp_path, 0)
        index = Index()
        starts = [0]
        for i in range(chance.randrange(1, 60)):
            if chance.random() < 0.7 or i == 0:
                index.add(i, starts[-1], -1)
            starts.append(starts[-1] + chance.choice([70, 300, 2500, 9000]))
        segment.size = starts.pop()
        found = [extent_at(segment, index, position) for position in starts]
        for position, extent in zip(starts, found, strict=True):
            assert extent.start <= position < extent.stop
            assert extent_at(segment, index, extent.start) == extent == extent_at(segment, index, extent.stop - 1)
        distinct = sorted(set(found), key=lambda extent: extent.start)
        assert distinct[0].start == 0 and distinct[-1].stop == segment.size
        assert all(a.stop == b.start for a, b in pairwise(distinct))


def test_only_what_is_read_is_fetched(log, url, monkeypatch):
    """A reader inside a large segment brings a part of it, and what it has read is here for all."""
    monkeypatch.setattr(fetched, "EXTENT", 2000)
    partition = log.create("t", 1, config(url, internal_segment_bytes="30000")).partitions[0]
    sent = fill(partition, 600)
    settle(log)
    first = partition.segments[0]
    assert not first.local and first.size > 20_000
    offset = first.end_offset // 2
    found = []
    while len(found) < 10:
        try:
            read = partition.read(offset, 500)
        except NotHere as missing:
            assert missing.extent.stop - missing.extent.start < 2500
            partition.fetch(missing)
        else:
            data = content(read)
            found += [record.value for _, each in batches(data) for record in records.records(each)]
            offset = read.next_offset
    assert found == sent[first.end_offset // 2 :][: len(found)]
    cache = partition._opened.cache
    assert 0 < cache.bytes < 5000
    assert values(read_all(partition)[0]) == sent
    assert partition.offset_for_time(NOW) == (0, NOW)


def ahead_of(partition, offset, max_bytes=500):
    """Read from an offset as a consumer does; what is ahead, and where to go on."""
    while True:
        try:
            read = partition.read(offset, max_bytes)
        except NotHere as missing:
            partition.fetch(missing)
        else:
            content(read)
            return read.ahead, read.next_offset


def test_who_reads_from_start_to_end_is_told_what_comes_next(log, url, monkeypatch):
    """Once per extent, from the second one on, across segments, and nothing of what is here."""
    monkeypatch.setattr(fetched, "EXTENT", 2000)
    partition = log.create("t", 1, config(url, internal_segment_bytes="7000")).partitions[0]
    fill(partition, 300)
    settle(log)
    archived = [segment for segment in partition.segments if not segment.local]
    extents, told = [], []
    for segment in archived:
        index, position = partition._opened.index(segment), 0
        while position < segment.size:
            extents.append(extent_at(segment, index, position))
            position = extents[-1].stop
    assert len(archived) >= 4 and len(extents) >= 3 * len(archived)
    offset = 0
    while offset < archived[-1].end_offset:
        ahead, offset = ahead_of(partition, offset)
        if ahead is not None:
            told.append(ahead.extent)
    assert told == extents[2:]
    assert all(ahead_of(partition, offset)[0] is None for offset in range(0, 300, 3)), "all of it is here"


def test_who_reads_here_and_there_is_told_nothing(log, url, monkeypatch):
    monkeypatch.setattr(fetched, "EXTENT", 2000)
    partition = log.create("t", 1, config(url, internal_segment_bytes="7000")).partitions[0]
    fill(partition, 300)
    settle(log)
    chance = Random(3)
    for _ in range(100):
        assert ahead_of(partition, chance.randrange(250), max_bytes=1)[0] is None


def test_what_comes_next_is_not_told_when_the_cache_is_small(tmp_path, url, monkeypatch):
    monkeypatch.setattr(fetched, "EXTENT", 2000)
    with open_log(tmp_path / "log", millstream_archive_cache_bytes=str(2000 * fetched.LEAST_AHEAD - 1)) as log:
        partition = log.create("t", 1, config(url, internal_segment_bytes="7000")).partitions[0]
        fill(partition, 300)
        settle(log)
        offset = 0
        while offset < 250:
            ahead, offset = ahead_of(partition, offset)
            assert ahead is None


def test_an_index_that_is_missing_is_fetched_ahead(tmp_path, url):
    log = open_log(tmp_path / "log")
    fill(log.create("t", 1, config(url)).partitions[0], 60)
    settle(log)
    log.close()
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        first, second, third = partition.segments[:3]
        third.index_path.unlink()
        ahead_of(partition, 0, 10**6)
        ahead, _ = ahead_of(partition, second.base, 1)
        assert ahead.extent.segment is third
        partition.fetch(ahead)
        assert third.index_path.exists()
        assert first.end_offset == second.base


def test_what_is_searched_by_time_may_lie_in_the_next_extent(log, url, monkeypatch):
    monkeypatch.setattr(fetched, "EXTENT", 700)
    more = {"internal_segment_bytes": "30000", "index_interval_bytes": "600"}
    partition = log.create("t", 1, config(url, **more)).partitions[0]
    for i in range(200):
        partition.append(batch(b"%d" % i, timestamp=NOW + 10 * i), NOW)
    fill(partition, 300)
    settle(log)
    assert not partition.segments[0].local
    for i in range(1, 200):
        for _ in range(3):
            try:
                assert partition.offset_for_time(NOW + 10 * i - 5) == (i, NOW + 10 * i)
                break
            except NotHere as missing:
                partition.fetch(missing)
        else:
            raise AssertionError("more than two extents are needed to find a time")


def test_an_index_fetched_for_a_later_segment_does_not_drive_out_what_is_read(tmp_path, url):
    """A reader of committed records needs indexes of segments behind its own: with a cache for nothing it gets on."""
    log = open_log(tmp_path / "log", millstream_archive_cache_bytes="0")
    partition = log.create("t", 1, config(url)).partitions[0]
    for i in range(60):
        partition.append(batch(b"%d" % i, producer_id=1, producer_epoch=0, base_sequence=i, transactional=True), NOW)
        if i % 10 == 9:
            partition.append(build_marker(1, 0, commit=False, coordinator_epoch=0, timestamp=NOW), NOW, internal=True)
    fill(partition, 20)
    settle(log)
    log.close()
    for path in (tmp_path / "log").rglob("*.index"):
        path.write_bytes(b"damaged")
    with open_log(tmp_path / "log", millstream_archive_cache_bytes="0") as log:
        partition = log.topics["t"].partitions[0]
        found, offset = [], 0
        for _ in range(300):
            try:
                read = partition.read(offset, 200, committed=True)
            except NotHere as missing:
                partition.fetch(missing)
                continue
            if read.next_offset == offset:
                break
            skipped = {producer for producer, _ in read.aborted}
            found += [
                h.base_offset for h, _ in batches(content(read)) if not h.control and h.producer_id not in skipped
            ]
            offset = read.next_offset
        else:
            raise AssertionError(f"a reader does not get beyond {offset}")
        assert found == list(range(66, 86))


def test_retention_takes_what_is_being_fetched(log, url, monkeypatch):
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    settle(log)
    real = archives.fetch

    def fetch(*given):
        found = real(*given)
        partition.delete_before(-1)
        settle(log)
        return found

    monkeypatch.setattr(archives, "fetch", fetch)
    bring(partition, partition.segments[0])
    cache = partition._opened.cache
    assert len(cache) == 0 == cache.bytes and partition.start_offset == 60


def test_a_full_disk_while_fetching(log, url, monkeypatch):
    """Who reads gets a retriable error, nothing is left, and it works again when there is room."""
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(archives, "write_all", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            read_all(partition)
        assert caught.value.code == 56
    assert list((log.folder / "fetched").iterdir()) == [] and len(partition._opened.cache) == 0
    assert values(read_all(partition)[0]) == sent


def test_closing_does_not_wait_for_a_copy(tmp_path, url, monkeypatch):
    """A log that is closed in the middle of a copy stops it, notes nothing, and copies it the next time."""
    monkeypatch.setattr(archives, "WRITE", 100)
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    maintain(log)
    real = os.pread

    def pread(*given):
        monkeypatch.setattr(os, "pread", real)
        log.close()
        return real(*given)

    monkeypatch.setattr(os, "pread", pread)
    assert not log.archive(NOW)
    assert not (partition.folder / archives.NAME).exists()
    with open_log(tmp_path / "log") as log:
        settle(log)
        partition = log.topics["t"].partitions[0]
        assert partition.local_start_offset > 50 and values(read_all(partition)[0]) == sent


def test_what_a_kill_leaves_of_a_fetch_is_removed(tmp_path):
    open_log(tmp_path / "log").close()
    left = tmp_path / "log" / "fetched" / "17.140000.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with open_log(tmp_path / "log") as log:
        assert not left.exists() and any("fetched" in line for line in log.recovered)


def test_archives_take_turns(log, tmp_path, monkeypatch):
    """One archive that fails, and one topic that always has something to copy, do not keep the others from theirs."""
    bad, good = f"file://{tmp_path}/bad", f"file://{tmp_path}/good"
    for name, url in (("a", bad), ("b", good), ("c", good)):
        fill(log.create(name, 1, config(url)).partitions[0], 60)
    maintain(log)
    assert log.archives() == {bad, good}
    real = archives._filesystem

    def refuse(url):
        if url.startswith(bad):
            raise archives.ArchiveError("the archive is on holiday")
        return real(url)

    monkeypatch.setattr(archives, "_filesystem", refuse)
    for _ in range(4):
        assert log.archive(NOW, good)
    assert all(log.topics[name].partitions[0].archived_offset > 0 for name in "bc")
    assert not log.archive(NOW, bad)
    settle(log)
    assert log.topics["a"].partitions[0].archived_offset == 0 < log.topics["c"].partitions[0].local_start_offset
    log.delete("b")
    assert log.archives() == {bad, good} and log.archive(NOW, good) and not log.archive(NOW, good)
    assert not [name for name in objects(good) if "/b-" in name]


def test_whether_an_archive_can_be_used_is_found_without_connecting(monkeypatch):
    """It is asked where nothing may block."""
    monkeypatch.setattr(archives, "_filesystem", lambda url: pytest.fail("connected"))
    archives.check_available("memory://x", ())
    archives.check_available("file:///x", ())
    with pytest.raises(InvalidConfig, match="knows no nowhere"):
        archives.check_available("nowhere://x", ())
    registry = sys.modules["fsspec.registry"]
    far = {"class": "far_away.Far", "err": "install far_away"}
    monkeypatch.setattr(registry, "known_implementations", {**registry.known_implementations, "far": far})
    with pytest.raises(InvalidConfig, match="install far_away"):
        archives.check_available("far://x", ())


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize("point", failpoints.ARCHIVING)
def test_a_crash_at(point, hit, tmp_path):
    url = f"file://{tmp_path}/archive"
    folder = tmp_path / "log"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            left = hit

            def trip():
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)

            failpoints.tripped[point] = trip
            log = open_log(folder)
            partition = log.create("t", 1, config(url, retention_bytes="4000")).partitions[0]
            for _ in range(4):
                fill(partition, 20)
                settle(log)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, f"{point} is not reached {hit} times"
    with open_log(folder) as log:
        partition = log.topics["t"].partitions[0]
        found, _ = read_all(partition)
        assert [r.offset for r in found] == list(range(partition.start_offset, partition.end_offset)) and found
        assert all(r.value[:6] == b"%06d" % r.offset for r in found)
        fill(partition, 20)
        settle(log)
        found, _ = read_all(partition)
        assert [r.offset for r in found] == list(range(partition.start_offset, partition.end_offset))
        assert len(objects(url)) == 2 * (len(partition.segments) - 1), "something is left over in the archive"
    assert verify(folder) == []
    assert list(folder.rglob("*.tmp")) == []


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("", None),
        ("file:///mnt/archive", None),
        ("s3://bucket/prefix", None),
        ("memory://x", None),
        ("/mnt/archive", "expected a URL"),
        ("file://mnt", "absolute"),
        ("s3://key:secret@bucket", "password"),
    ],
)
def test_urls(value, wrong):
    said = wrong_url(value)
    assert said is None if wrong is None else wrong in said


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup.policy": "compact"},
        {"millstream.overload": "drop"},
        {"retention.bytes": "100", "local.retention.bytes": "101"},
        {"retention.ms": "100", "local.retention.ms": "-1"},
    ],
)
def test_settings_that_do_not_go_together(settings):
    with pytest.raises(InvalidConfig):
        TopicConfig({"millstream.archive": "memory://x", **settings})


def test_without_the_package_the_error_says_what_to_install(log, monkeypatch):
    archives._filesystem.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'millstream\[archive\]'"):
        log.create("t", 1, config("memory://elsewhere"))
    log.create("t", 1, SEGMENT)
    with pytest.raises(InvalidConfig, match="fsspec"):
        log.configure("t", {"millstream.archive": "memory://elsewhere"})
    archives._filesystem.cache_clear()


def test_a_damaged_note_is_made_again_from_the_indexes(tmp_path, url):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    log.close()
    note = partition.folder / "archive.json"
    before = note.read_bytes()
    note.write_text("{")
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert any("archive.json: damaged, made again" in line for line in log.recovered)
        assert values(read_all(partition)[0]) == sent
    assert note.read_bytes() == before
    with open_log(tmp_path / "log") as log:
        assert log.recovered == []


def test_a_damaged_note_is_put_aside_when_nobody_knows_the_archive(tmp_path, url):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    kept = partition.local_start_offset
    log.configure("t", {"millstream.archive": None})
    log.close()
    note = partition.folder / "archive.json"
    note.write_text("{")
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert any("archive.json: damaged, put aside" in line for line in log.recovered)
        assert values(consume(partition)) == sent[kept:]
        assert len(list(partition.folder.glob("*.index"))) > 10, "they say what is in the archive"


def test_where_archives_may_be(tmp_path):
    with open_log(tmp_path / "log", millstream_archive_allow="memory://mine, file:///mnt/a/") as log:
        log.create("t", 1, config("memory://mine/x"))
        for url in ("memory://minefield", "file:///etc", "file:///mnt/a/../b"):
            with pytest.raises(InvalidConfig):
                log.configure("t", {"millstream.archive": url})
