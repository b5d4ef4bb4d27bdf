"""What a capture remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.capture.state import State, StateFile, TableState
from millstream.settings import MillstreamError

YESTERDAY = (
    b'{"version":1,"system":"7","database":"ops","slot":"s","confirmed":5,"tables":{"planes":{"relation":"public.planes",'
    b'"topic_id":"x","after":["N1"],"rows":3,"sweep":{"0":17},"key":["tailnum"],"columns":{"tailnum":"1:text"}}}}'
)


def test_reads_the_first_version(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "made", "app", "ops")
    (tmp_path / "made" / "app-ops.json").write_bytes(YESTERDAY)
    table = TableState("public.planes", "x", False, ["N1"], 3, {0: 17}, ["tailnum"], {"tailnum": "1:text"})
    state = State(1, "7", "ops", 5, {"planes": table})
    assert file.load() == state
    file.save(state)
    assert file.load() == state


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert StateFile(tmp_path, "app", "ops").load() == State()


@pytest.mark.parametrize(
    ("content", "words"), [(b'{"version":2}', "has version 2, expected 1"), (b"{", "is not a state")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "app-ops.json").write_bytes(content)
    with pytest.raises(MillstreamError, match=words):
        StateFile(tmp_path, "app", "ops").load()


def test_restarting_keeps_the_marks_unless_changes_were_missed() -> None:
    table = TableState(copied=True, after=["1"], rows=5, sweep={0: 3})
    table.restart(None)
    assert (table.copied, table.after, table.rows, table.sweep) == (False, None, 0, {0: 3})
    table.restart({0: 9})
    assert table.sweep == {0: 9}
