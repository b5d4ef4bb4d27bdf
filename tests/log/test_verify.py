"""`verify` finds what is damaged, names it, and says nothing about what is whole."""

import os

import pytest
from msgspec import structs

from millstream.log import LogError, NotHere, archive, checkpoint, verify
from millstream.protocol import records
from tests.log.logs import NOW, SMALL, consume, content, crash, fill, keyed, maintain, open_log


@pytest.fixture
def folder(tmp_path):
    with open_log(tmp_path / "log") as log:
        fill(log.create("good", 2, SMALL).partitions[1], 30)
        fill(log.create("bad", 1, SMALL).partitions[0], 30)
    return tmp_path / "log"


def segments(folder):
    return sorted((folder / "topics" / "bad" / "0").glob("*.log"))


def test_a_whole_log(folder):
    seen = []
    assert verify(folder, lambda path, size: seen.append(size)) == []
    assert len(seen) == len(list(folder.rglob("*.log"))) and sum(seen) > 5000


def test_every_flipped_byte_is_found(folder):
    path = segments(folder)[1]
    data = path.read_bytes()
    for position in range(len(data) // 4):
        broken = bytearray(data)
        broken[position] ^= 1
        path.write_bytes(broken)
        (found,) = verify(folder)
        assert (found.topic, found.partition, found.file) == ("bad", 0, path)
        assert found.position <= position
        assert "bad-0 offset" in str(found) and path.name in str(found)


@pytest.mark.parametrize("interval", [100, 4096])
def test_every_flipped_bit_of_a_header_is_found_on_read(tmp_path, interval):
    """An offset is served as it was written or refused: none is left out, also when the damage is in an offset itself."""
    config = {**SMALL, "index.interval.bytes": str(interval)}
    with open_log(tmp_path / "log") as log:
        fill(log.create("t", 1, config).partitions[0], 30)
    path = sorted((tmp_path / "log").rglob("*.log"))[1]
    data = path.read_bytes()
    first = int(path.stem)
    for batch in (0, 3):
        for bit in range(61 * 8):
            broken = bytearray(data)
            broken[batch * len(data) // 4 + bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            log = open_log(tmp_path / "log")
            partition = log.topics["t"].partitions[0]
            refused = []
            for offset in range(first, first + 4):
                try:
                    found = list(records.records(content(partition.read(offset, 1))))
                    assert [(record.offset, record.value[:6]) for record in found] == [(offset, b"%06d" % offset)]
                except LogError:
                    refused.append(offset)
            assert first + batch in refused
            crash(log)
    path.write_bytes(data)


@pytest.mark.parametrize("lost_index", [False, True])
def test_a_flipped_bit_of_an_offset_in_a_compacted_segment(tmp_path, lost_index):
    """Offsets do not follow each other there, so they have a sum."""
    config = {**SMALL, "internal.segment.bytes": "3000", "cleanup.policy": "compact", "index.interval.bytes": "400"}
    with open_log(tmp_path / "log") as log:
        partition = log.create("t", 1, config).partitions[0]
        for i in range(100):
            partition.append(keyed((b"%d" % (i if i % 3 else 0), b"%06d" % i)), NOW)
        maintain(log)
        cleaned = partition.segments[0]
        assert cleaned.gaps
        expected = consume(partition)
        kept = [record.offset for record in expected if record.offset < cleaned.end_offset]
    path = cleaned.path
    if lost_index:  # ... which is computed again with the index
        path.with_suffix(".index").unlink()
        with open_log(tmp_path / "log") as log:
            assert consume(log.topics["t"].partitions[0]) == expected
    data = path.read_bytes()
    places = [at for at, _ in records.headers(data)]
    for place in places[:3]:
        for bit in range(place % 2, 8 * 16, 2):
            broken = bytearray(data)
            broken[place + bit // 8] ^= 1 << bit % 8
            path.write_bytes(broken)
            assert verify(tmp_path / "log"), f"bit {bit} at {place}"
            log = open_log(tmp_path / "log")
            partition = log.topics["t"].partitions[0]
            refused = 0
            for offset in kept:
                try:
                    (found,) = records.records(content(partition.read(offset, 1)))
                    assert found.offset == offset and int(found.value) == offset
                except LogError:
                    refused += 1
            assert refused
            crash(log)
    path.write_bytes(data)
    assert verify(tmp_path / "log") == []


def test_a_flipped_offset_is_not_what_a_time_leads_to(tmp_path):
    with open_log(tmp_path / "log") as log:
        partition = log.create("t", 1, {**SMALL, "index.interval.bytes": "4096"}).partitions[0]
        for i in range(30):
            fill(partition, 1, timestamp=NOW + i)
    path = sorted((tmp_path / "log").rglob("*.log"))[1]
    data, first = path.read_bytes(), int(path.stem)
    for bit in range(16 * 8):
        broken = bytearray(data)
        broken[len(data) // 2 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        log = open_log(tmp_path / "log")
        partition = log.topics["t"].partitions[0]
        with pytest.raises(LogError):
            partition.offset_for_time(NOW + first + 2)
        assert partition.offset_for_time(NOW + first + 1) == (first + 1, NOW + first + 1)
        assert partition.offset_for_time(NOW + first + 9) == (first + 9, NOW + first + 9)
        crash(log)


def test_two_places(folder):
    first, last = segments(folder)[1], segments(folder)[-1]
    for path in (first, last):
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        path.write_bytes(data)
    assert [(d.file, d.position) for d in verify(folder)] == [(first, 0), (last, 0)]


def test_a_torn_end_and_an_index(folder):
    last = segments(folder)[-1]
    with open(last, "ab") as file:
        file.write(b"half a batch")
    index = segments(folder)[0].with_suffix(".index")
    index.write_bytes(b"x")
    torn, damaged = sorted(verify(folder), key=lambda d: d.position, reverse=True)
    assert torn.file == last and "12 bytes are left" in torn.message
    assert "computed again" in damaged.message
    log = open_log(folder)
    assert verify(folder) == []
    crash(log)


@pytest.fixture
def archived(tmp_path):
    """A log whose older segments are in a folder only, and that folder."""
    pytest.importorskip("fsspec", reason="the archive needs fsspec: pip install 'millstream[archive]'")
    config = {**SMALL, "millstream.archive": f"file://{tmp_path}/archive", "local.retention.bytes": "0"}
    with open_log(tmp_path / "log") as log:
        fill(log.create("good", 1, config).partitions[0], 30)
        fill(log.create("bad", 1, config).partitions[0], 30)
        maintain(log)
        while log.archive(NOW) or log.maintain(NOW):
            pass
    (copies,) = (tmp_path / "archive").glob("bad-*/0")
    return tmp_path / "log", copies


def served(folder):
    """Offsets that are read, of each topic, and how many reads failed; what is archived is fetched."""
    found, failed = {}, 0
    log = open_log(folder)
    for topic in log.topics.values():
        partition = topic.partitions[0]
        offset = partition.start_offset
        offsets = found[topic.name] = []
        while offset < partition.end_offset:
            try:
                read = partition.read(offset, 1)
            except NotHere as missing:
                try:
                    partition.fetch(missing)
                    continue
                except LogError:
                    failed, offset = failed + 1, offset + 1
            except LogError:
                failed, offset = failed + 1, offset + 1
            else:
                (record,) = records.records(content(read))
                assert (record.offset, record.value[:6]) == (offset, b"%06d" % offset)
                offsets.append(offset)
                offset = read.next_offset
    crash(log)
    return found, failed


def test_archived_segments_are_looked_at(archived):
    folder, copies = archived
    seen = []
    assert verify(folder, lambda path, size: seen.append(str(path))) == []
    assert sum(path.startswith("file://") for path in seen) == 2 * len(list(copies.glob("*.log"))) > 4


def test_every_flipped_byte_in_an_archive_is_found_and_never_served(archived):
    folder, copies = archived
    path = sorted(copies.glob("*.log"))[1]
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        (damage,) = verify(folder)
        assert (damage.topic, damage.partition, damage.file) == ("bad", 0, f"file://{path}")
        assert damage.position <= position and damage.offset < 30
        assert verify(folder, archived=False) == []
        if position % 4 == 0:
            found, failed = served(folder)
            assert found["good"] == list(range(30)) and 0 < failed < 10
            assert sorted(set(range(30)) - set(found["bad"])) and len(found["bad"]) + failed == 30
    path.write_bytes(data)
    assert verify(folder) == [] and served(folder)[1] == 0


@pytest.mark.parametrize("where", ["here", "away"])
def test_a_flipped_bit_in_an_index_of_an_archived_segment(archived, where):
    folder, copies = archived
    bad = folder / "topics" / "bad" / "0" if where == "here" else copies
    path = sorted(bad.glob("*.index"))[1]
    data = path.read_bytes()
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        (damage,) = verify(folder)
        assert damage.topic == "bad" and str(damage.file).endswith(str(path)) and "damaged" in damage.message
        if position % 20 == 0:
            found, failed = served(folder)
            assert found == {"bad": list(range(30)), "good": list(range(30))} and failed == 0
            if where == "here":  # the archive's own has taken its place
                assert path.read_bytes() == data
    path.write_bytes(data)
    assert verify(folder) == []


def test_a_flipped_bit_in_the_note_of_what_is_archived(archived):
    folder, _ = archived
    path = folder / "topics" / "bad" / "0" / archive.NAME
    data = path.read_bytes()
    for position in range(0, len(data), 31):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 7
        if broken == data or not broken.isascii():
            continue
        path.write_bytes(broken)
        (damage,) = verify(folder)
        assert damage.file == path and "made again" in damage.message
        found, failed = served(folder)
        assert found == {"bad": list(range(30)), "good": list(range(30))} and failed == 0
        assert verify(folder) == []
    assert path.read_bytes() == data


def test_a_note_without_a_checksum_is_read(archived):
    """As the first version wrote it."""
    folder, _ = archived
    path = folder / "topics" / "bad" / "0" / archive.NAME
    before = path.read_bytes()
    path.write_bytes(before[: before.index(b',"crc"')] + b"}")
    assert verify(folder) == [] and served(folder)[1] == 0


def test_what_an_archive_has_lost(archived):
    folder, copies = archived
    first, second, third = sorted(copies.glob("*.log"))[:3]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-5])
    os.rename(third.with_suffix(".index"), third.with_suffix(".lost"))
    lost, short, index = verify(folder)
    assert lost.file == f"file://{first}" and "not in the archive" in lost.message
    assert short.file == f"file://{second}" and "are noted" in short.message
    assert str(index.file).endswith(".index") and "the one here serves" in index.message


def test_what_retention_is_about_to_remove_may_be_gone(archived):
    """A crash between the removal in the archive and its note is no damage."""
    folder, copies = archived
    first = sorted(copies.glob("*.log"))[0]
    first.unlink()
    assert len(verify(folder)) == 1
    known = checkpoint.read(folder / "topics" / "bad" / "0")
    after = int(sorted(copies.glob("*.log"))[0].stem)
    checkpoint.write(folder / "topics" / "bad" / "0", structs.replace(known, start=after), sync=False)
    assert verify(folder) == []


def test_an_archive_that_cannot_be_reached(archived, monkeypatch):
    folder, _ = archived

    def refuse(_url):
        raise archive.ArchiveError("the archive is on holiday")

    monkeypatch.setattr(archive, "_filesystem", refuse)
    found = verify(folder)
    assert found and all("cannot be checked: the archive is on holiday" in each.message for each in found)
