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
    """The part of a Source that a snapshot needs."""

    changed = False

    @contextmanager
    def chunk(self, table: SourceTable, after: list[str] | None) -> Iterator[Chunk]:
        yield Chunk(int(after[0]) + 1 if after else 1, self.changed)


class World:
    """A snapshotter of one table."""

    def __init__(self) -> None:
        self.sink, self.source, self.state, self.saved = Kept(), Chunks(), TableState(relation="public.t"), 0
        changes = Changes("toy", "app", "db", self.sink, lambda topic, reason: None, lambda: True)
        self.snapshotter = Snapshotter(cast(Source, self.source), self.sink, changes, self.save, lambda: True)

    def save(self) -> None:
        """Count."""
        self.saved += 1

    def step(self) -> int | None:
        """One chunk."""
        return self.snapshotter.copy_chunk("t", TABLE, self.state)

    def sent(self) -> list[tuple[int, Any]]:
        """Keys and operations."""
        return [(k["id"], v and v["op"]) for k, v in self.sink.of("t")]


@pytest.fixture
def world() -> World:
    """Nothing copied yet."""
    return World()


def test_a_table_chunk_by_chunk(world: World) -> None:
    assert world.step() is None
    assert (world.state.after, world.state.rows, world.state.copied, world.saved) == (["2"], 2, False, 1)
    assert world.step() is None
    assert world.state.after == ["4"]
    assert world.step() == 105
    assert (world.state.after, world.state.rows, world.state.copied, world.saved) == (None, 5, True, 3)
    assert world.sent() == [(i, "r") for i in range(1, 6)]


def test_a_chunk_that_was_not_stored_is_not_remembered(world: World) -> None:
    world.step()
    world.sink.flushes = False
    assert world.step() is None
    assert (world.state.after, world.state.rows, world.saved) == (["2"], 2, 1)
    world.sink.flushes = True
    world.step()
    assert (world.state.after, world.state.rows) == (["4"], 4)


def test_a_table_that_was_locked_or_changed_is_asked_for_again(world: World) -> None:
    world.step()
    world.source.changed = True
    assert world.step() is None and world.snapshotter.stalled
    assert (world.state.after, world.state.rows, world.saved) == (["2"], 2, 1)
    world.source.changed = False
    assert world.step() is None and not world.snapshotter.stalled
    assert world.state.after == ["4"]


def test_rows_of_an_earlier_life_are_removed_at_the_end(world: World) -> None:
    for i in (3, 77):
        world.sink.send("t", b'{"id":%d}' % i, b'{"op":"c"}')
    world.state.sweep = {0: 2}
    while not world.state.copied:
        world.step()
    assert world.sent()[2:] == [*((i, "r") for i in range(1, 6)), (77, None)]
    assert world.state.sweep == {}
