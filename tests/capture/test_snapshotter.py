"""Chunks of a table, by values: what is sent, what is remembered when, and what is removed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from millstream.capture.changes import Changes
from millstream.capture.envelope import Column
from millstream.capture.snapshotter import Snapshotter
from millstream.capture.source import Row, Source, SourceTable
from millstream.capture.state import TableState
from tests.capture.test_changes import Kept

COLUMNS = (Column("id", "long", False),)
TABLE = SourceTable(1, "public", "t", COLUMNS, ("id",), {"id": "1:int"}, frozenset(), 5)


class Chunk:
    """Two rows from `start` on, of five."""

    at_ms = 1000

    def __init__(self, start: int, changed: bool) -> None:
        self.changed = changed
        self.position = 100 + start
        self._ids = list(range(start, min(start + 2, 6)))
        self.last = [str(self._ids[-1])] if start < 5 else None

    def rows(self) -> Iterator[Row]:
        return iter([] if self.changed else [{"id": i} for i in self._ids])


class Chunks:
    """The part of a Source that a snapshot needs. The log is read to its end."""

    changed = False
    received = 1000
    nudged = 0

    @contextmanager
    def chunk(self, table: SourceTable, after: list[str] | None) -> Iterator[Chunk]:
        yield Chunk(int(after[0]) + 1 if after else 1, self.changed)

    def nudge(self) -> None:
        self.nudged += 1


class World:
    """A snapshotter of one table."""

    def __init__(self) -> None:
        self.sink, self.source, self.state, self.saved = Kept(), Chunks(), TableState(relation="public.t"), 0
        self.changes = Changes("toy", "app", "db", self.sink, lambda topic, reason: None, lambda: True)
        self.changes.schema("t", "public", "t", COLUMNS, ("id",))
        self.snapshotter = Snapshotter(cast(Source, self.source), self.sink, self.changes, self.save, lambda: True)

    def save(self) -> None:
        """Count."""
        self.saved += 1

    def step(self) -> bool:
        """Read a chunk, or send one."""
        return self.snapshotter.step("t", TABLE, self.state)

    def chunk(self) -> None:
        """Read one and send it."""
        self.step()
        self.step()

    def sent(self) -> list[tuple[int, Any]]:
        """Keys and operations."""
        return [(k["id"], v and v["op"]) for k, v in self.sink.of("t")]


@pytest.fixture
def world() -> World:
    """Nothing copied yet."""
    return World()


def test_a_table_chunk_by_chunk(world: World) -> None:
    assert world.step() and world.sent() == []
    assert world.step()
    assert (world.state.after, world.state.rows, world.state.copied, world.saved) == (["2"], 2, False, 1)
    world.chunk()
    assert world.state.after == ["4"]
    world.chunk()
    assert (world.state.after, world.state.rows, world.state.copied, world.saved) == (None, 5, True, 3)
    assert world.sent() == [(i, "r") for i in range(1, 6)]


def test_a_chunk_waits_until_the_log_has_been_read_up_to_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.source.received = 100
    assert world.step() and world.step() and not world.step()  # two are held, at 101 and 103
    assert world.sent() == [] and world.source.nudged == 0
    monkeypatch.setattr("millstream.capture.snapshotter.NUDGE_S", 0.0)
    assert not world.step() and world.source.nudged == 1
    world.source.received = 101
    assert world.step() and world.sent() == [(1, "r"), (2, "r")] and world.state.after == ["2"]
    assert world.step() and not world.step()  # the third is read, at 105
    world.source.received = 105
    assert world.step() and world.step() and world.state.copied
    assert world.sent() == [(i, "r") for i in range(1, 6)]


def test_rows_that_change_while_they_wait_are_not_sent_as_they_were(world: World) -> None:
    world.source.received = 100
    world.step()
    world.step()
    world.changes.begin(7, 1000, 102)
    world.changes.update("t", None, False, {"id": 1}, 101)
    world.changes.delete("t", {"id": 3}, False, 102)
    world.changes.update("t", {"id": 2}, False, {"id": 9}, 102)  # another key
    world.source.received = 1000
    while not world.state.copied:
        world.step()
    assert world.sent() == [(1, "u"), (3, "d"), (3, None), (2, "d"), (2, None), (9, "c"), (4, "r"), (5, "r")]
    assert world.state.rows == 5


def test_a_truncate_empties_what_waits(world: World) -> None:
    world.step()
    world.changes.begin(7, 1000, 102)
    world.changes.truncate("t", 102)
    world.changes.insert("t", {"id": 1}, 102)
    world.step()
    assert world.sent() == [(1, "c")] and world.state.after == ["2"]


def test_a_table_that_stands_still_loses_what_waits(world: World) -> None:
    world.step()
    world.snapshotter.drop("t")
    world.state.restart(None, "")
    world.chunk()
    assert world.sent() == [(1, "r"), (2, "r")]


def test_a_chunk_that_was_not_stored_is_not_remembered(world: World) -> None:
    world.chunk()
    world.sink.flushes = False
    world.chunk()
    assert (world.state.after, world.state.rows, world.saved) == (["2"], 2, 1)
    world.sink.flushes = True
    world.chunk()
    assert (world.state.after, world.state.rows) == (["4"], 4)


def test_a_table_that_was_locked_or_changed_is_asked_for_again(world: World) -> None:
    world.chunk()
    world.source.changed = True
    assert not world.step() and world.snapshotter.stalled
    assert (world.state.after, world.state.rows, world.saved) == (["2"], 2, 1)
    world.source.changed = False
    assert world.step() and not world.snapshotter.stalled and world.step()
    assert world.state.after == ["4"]


def test_rows_of_an_earlier_life_are_removed_at_the_end(world: World) -> None:
    for i in (3, 77):
        world.sink.send("t", b'{"id":%d}' % i, b'{"op":"c"}')
    world.state.sweep = {0: 2}
    while not world.state.copied:
        world.step()
    assert world.sent()[2:] == [*((i, "r") for i in range(1, 6)), (77, None)]
    assert world.state.sweep == {}
