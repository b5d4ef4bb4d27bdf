"""Data folders of every format version that was ever released are read."""

import re
import shutil
from pathlib import Path

import pytest

from millstream.log import Log, verify
from millstream.log.log import FORMAT
from tests.log.logs import NOW, batch, consume, maintain, state, values

DATA = Path(__file__).parent / "data"
VERSIONS = sorted(DATA.glob("format-*"))


def test_the_present_format_is_among_them():
    assert (DATA / f"format-{FORMAT}").is_dir()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_reading(version, clean, tmp_path):
    folder = tmp_path / "log"
    shutil.copytree(version, folder)
    if not clean:
        (folder / "clean").unlink()
    with Log(folder, clock=lambda: NOW / 1000) as log:
        assert log.recovered == []
        assert re.fullmatch(r"[A-Za-z0-9_-]{22}", log.cluster_id)
        assert log.next_producer_id() > 0
        assert set(log.topics) == {"plain", "table", "paid"}
        plain, table, paid = (
            log.topics["plain"].partitions[1],
            log.topics["table"].partitions[0],
            log.topics["paid"].partitions[0],
        )
        assert [(r.offset, r.timestamp, r.value, r.headers) for r in consume(plain)] == [
            (i, NOW + i, b"%d" % i, (("h", b"1"),)) for i in range(3, 10)
        ]
        assert plain.append(batch(b"9", producer_id=5, producer_epoch=0, base_sequence=9), NOW).duplicate
        assert len(plain.segments) > 1 and plain.offset_for_time(NOW + 7) == (7, NOW + 7)
        assert state(consume(table)) == {b"key 0": b"28", b"key 2": b"26", b"key 3": b"27"}
        assert table.end_offset == 30 and 0 < table.cleaned_offset <= 30
        assert values(consume(paid)) == [b"0", b"1", b"2"]
        assert values(consume(paid, committed=True)) == [b"0"]
        assert paid.read(0, 1000, committed=True).aborted == [(1, 2)]
        assert (paid.last_stable_offset, paid.end_offset) == (4, 5)
        for partition in (plain, table, paid):
            partition.append(batch(b"after"), NOW)
            assert values(consume(partition))[-1] == b"after"
        maintain(log)
    assert verify(folder) == []
