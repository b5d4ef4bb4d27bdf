"""`verify` finds what is damaged, names it, and says nothing about what is whole."""

import pytest

from millstream.log import verify
from tests.log.logs import SMALL, crash, fill, open_log


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
