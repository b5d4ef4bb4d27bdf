"""The archive: readers do not notice where a segment is; a crash at any place leaves each record readable once."""

import os
import sys

import pytest

from millstream.log import InvalidConfig, NotHere, StorageError, failpoints, verify
from millstream.log import archive as archives
from millstream.log.archive import Cache, wrong_url
from millstream.log.config import TopicConfig
from millstream.protocol.records import build_marker
from tests.log.logs import NOW, batch, consume, content, crash, fill, maintain, open_log, values

SEGMENT = {"internal.segment.bytes": "600", "index.interval.bytes": "100", "retention.ms": "-1"}

fsspec = pytest.importorskip("fsspec", reason="the archive needs fsspec: pip install 'millstream[archive]'")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/archive"
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
            partition.fetch(missing.segment)
            fetched += 1


def objects(url):
    fs, path = fsspec.core.url_to_fs(url)
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
    partition.fetch(first)
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
            partition.fetch(missing.segment)
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
        partition.fetch(partition.segments[0])


def test_a_damaged_copy_is_not_served(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    settle(log)
    fs, path = fsspec.core.url_to_fs(partition.segments[0].remote.url)
    name = f"{path}/{0:020d}.log"
    data = bytearray(fs.cat_file(name))
    data[70] ^= 1
    fs.pipe_file(name, bytes(data))
    partition.fetch(partition.segments[0])
    with pytest.raises(Exception, match="checksum"):
        partition.read(0, 1000)
    fs.pipe_file(f"{path}/{partition.segments[1].base:020d}.log", b"short")
    with pytest.raises(StorageError, match="5 of"):
        partition.fetch(partition.segments[1])


def test_a_lost_index_says_so_when_it_matters(log, url):
    partition = log.create("t", 1, config(url)).partitions[0]
    fill(partition, 60)
    settle(log)
    first = partition.segments[0]
    first.index_path.unlink()
    fs, path = fsspec.core.url_to_fs(first.remote.url)
    fs.rm_file(f"{path}/{0:020d}.index")
    partition.fetch(first)
    assert content(partition.read(0, 1000))
    second = partition.segments[1]
    second.index_path.unlink()
    fs.rm_file(f"{path}/{second.base:020d}.index")
    second.remote = archives.Entry(
        **{**{f: getattr(second.remote, f) for f in second.remote.__struct_fields__}, "aborted": 1}
    )
    with pytest.raises(StorageError, match="aborted"):
        partition.fetch(second)


def test_the_cache_is_bounded(tmp_path, url):
    with open_log(tmp_path / "log", millstream_archive_cache_bytes="1500") as log:
        partition = log.create("t", 1, config(url)).partitions[0]
        sent = fill(partition, 60)
        settle(log)
        cache = partition._opened.cache
        offset, fetched, data = 0, 0, b""
        while offset < 60:
            try:
                read = partition.read(offset, 1000)
            except NotHere as missing:
                partition.fetch(missing.segment)
                fetched += 1
                assert 0 < cache.bytes <= 1500
            else:
                offset, data = read.next_offset, data + content(read)
        assert fetched == len(partition.segments) - 1 > 8 and all(value in data for value in sent)
        assert list((tmp_path / "log" / "fetched").iterdir()) == []


def test_a_segment_larger_than_the_cache_is_kept_alone(tmp_path):
    class Big:
        size = 10**9

    cache = Cache(tmp_path, 10)
    one, two = Big(), Big()
    for each in (one, two):
        cache.put(each, None, None)
    assert len(cache) == 1 and cache.get(two) == (None, None)
    with pytest.raises(AttributeError):  # NotHere names the segment
        cache.get(one)


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
    with pytest.raises(InvalidConfig, match=r"pip install 'millstream\[archive\]'"):
        log.create("t", 1, config("memory://elsewhere"))
    log.create("t", 1, SEGMENT)
    with pytest.raises(InvalidConfig, match="fsspec"):
        log.configure("t", {"millstream.archive": "memory://elsewhere"})
    archives._filesystem.cache_clear()


def test_a_damaged_note_is_put_aside(tmp_path, url):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, config(url)).partitions[0]
    sent = fill(partition, 60)
    settle(log)
    kept = partition.local_start_offset
    log.close()
    note = partition.folder / "archive.json"
    note.write_text("{")
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert any("archive.json" in line for line in log.recovered)
        assert values(consume(partition)) == sent[kept:]


def test_where_archives_may_be(tmp_path):
    with open_log(tmp_path / "log", millstream_archive_allow="memory://mine, file:///mnt/a/") as log:
        log.create("t", 1, config("memory://mine/x"))
        for url in ("memory://minefield", "file:///etc", "file:///mnt/a/../b"):
            with pytest.raises(InvalidConfig):
                log.configure("t", {"millstream.archive": url})
