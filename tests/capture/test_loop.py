"""A toy source through the loop and the sink into a real log: what any source gets from this room, crash and resume included."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream.app.inputs import Table
from millstream.app.sources import PostgresTable
from millstream.capture import failpoints
from millstream.capture.envelope import Column
from millstream.capture.loop import Capture
from millstream.capture.sink import KafkaSink
from millstream.capture.source import Receiver, Row, Source, SourceTable, TableProblem
from millstream.settings import Kafka
from millstream.settings.failpoints import tripped
from tests import servers
from tests.brokers import fresh

COLUMNS = (Column("id", "long", False), Column("n", "long"))


@dataclass
class Toy:
    """A database in memory: one table, and a list of transactions, whose places in it are the positions."""

    log: list[list[tuple[str, Row | None, Row | None]]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    confirmed: int = 0
    watching: bool = False
    broken: str = ""

    def write(self, *changes: tuple[int, int | None]) -> None:
        """Commit a transaction: each (id, n) is a row as it is from now on, without n deleted."""
        done: list[tuple[str, Row | None, Row | None]] = []
        for number, n in changes:
            before = self.rows.pop(number, None)
            after: Row | None = None if n is None else {"id": number, "n": n}
            if after is not None:
                self.rows[number] = after
            if before is not None or after is not None:
                done.append(("delete" if after is None else "update" if before else "insert", before, after))
        self.log.append(done)

    def expected(self) -> dict[str, Row]:
        """The rows as the topic has them."""
        return {json.dumps({"id": i}): row for i, row in self.rows.items()}


class ToySource:
    """See capture.source.Source."""

    connector, database, identity = "toy", "memory", "1"

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.received = 0
        self.topics: Sequence[str] = ()

    def cannot_resume(self, position: int) -> str:
        return "it is behind" if position < self.toy.confirmed else ""

    def describe(self, table: Table) -> SourceTable:
        if self.toy.broken:
            raise TableProblem(self.toy.broken)
        marks = {"id": "1:int", "n": "2:int"}
        return SourceTable(1, "", "numbers", COLUMNS, ("id",), marks, frozenset(), len(self.toy.rows))

    def watched(self) -> set[str] | None:
        return {"numbers"} if self.toy.watching else None

    def watch(self, tables: Sequence[SourceTable]) -> dict[str, str]:
        self.toy.watching = True
        return {}

    def wait_until_free(self, stop: threading.Event) -> None: ...

    def start_over(self, stop: threading.Event) -> int:
        return len(self.toy.log)

    def mark(self) -> int:
        return 0

    def passed(self, mark: int) -> bool:
        return True

    def holding_up(self) -> str:
        return "nothing"

    def follow(self, position: int, receiver: Receiver) -> None:
        self.received, self.receiver = position, receiver

    def capture(self, tables: Mapping[str, tuple[SourceTable, Mapping[str, str]]]) -> None:
        self.topics = list(tables)
        for topic in self.topics:
            self.receiver.schema(topic, "", "numbers", COLUMNS, ("id",))

    def receive(self, seconds: float) -> bool:
        if self.received == len(self.toy.log):
            return False
        position = self.received + 1
        self.receiver.begin(position, 1000 * position, position)
        for op, before, after in self.toy.log[self.received]:
            for topic in self.topics:
                if op == "insert":
                    assert after is not None
                    self.receiver.insert(topic, after, position)
                elif op == "update":
                    assert after is not None
                    self.receiver.update(topic, before, True, after, position)
                else:
                    assert before is not None
                    self.receiver.delete(topic, before, True, position)
        self.receiver.commit()
        self.received = position
        return True

    def wait(self, seconds: float) -> None:
        time.sleep(0.01)

    def confirm(self, position: int) -> None:
        self.toy.confirmed = position

    def end(self, *, unflushed: bool = False) -> int:
        return len(self.toy.log)

    @contextmanager
    def chunk(self, table: SourceTable, after: list[str] | None) -> Iterator[ToyChunk]:
        yield ToyChunk(self.toy, int(after[0]) if after else 0)

    def count(self, table: SourceTable, at_most: int) -> int:
        return len(self.toy.rows)


class ToyChunk:
    """Ten rows."""

    at_ms = 1
    changed = False

    def __init__(self, toy: Toy, after: int) -> None:
        self.position = len(toy.log)
        self._rows = sorted((i, row) for i, row in toy.rows.items() if i > after)
        self.last = [str(self._rows[9][0])] if len(self._rows) > 10 else None

    def rows(self) -> Iterator[Row]:
        yield from (dict(row) for _, row in self._rows[:10])


@dataclass
class World:
    """A toy, its topic, and captures of it in threads of this process."""

    toy: Toy
    kafka: Kafka
    topic: str
    folder: Path
    reports: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def capture(self) -> Iterator[threading.Event]:
        """Run a capture; the event says that it is ready."""
        ready, stop = threading.Event(), threading.Event()
        problems: list[BaseException] = []

        @contextmanager
        def opened(waiting: object) -> Iterator[Source]:
            yield ToySource(self.toy)

        def work() -> None:
            try:
                capture.run(lambda facts: ready.set())
            except BaseException as problem:
                problems.append(problem)

        sink = KafkaSink(self.kafka, self.folder)
        table = Table(self.topic, PostgresTable("memory", "numbers"))
        report = lambda kind, name, **facts: self.reports.append(facts)  # noqa: E731
        capture = Capture("toys", "memory", opened, [table], sink, state=self.folder, report=report, stop=stop)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield ready
        finally:
            stop.set()
            thread.join(30)
            self.problems = problems

    def equal(self) -> bool:
        """Whether the topic folds to the table."""
        return servers.latest(self.kafka, self.topic) == self.toy.expected()


@pytest.fixture
def world(kafka: Kafka, tmp_path: Path) -> World:
    """Thirty-five rows: four chunks."""
    toy = Toy()
    toy.write(*((i, 0) for i in range(1, 36)))
    return World(toy, kafka, fresh("numbers"), tmp_path)


@pytest.mark.system
def test_a_snapshot_then_its_changes(world: World) -> None:
    with world.capture() as ready:
        assert ready.wait(30) and world.equal()
        world.toy.write((1, 5), (2, None), (40, 1))
        servers.wait_for(world.equal, "the changes arrive")
        servers.wait_for(lambda: world.toy.confirmed == len(world.toy.log), "they are confirmed")
    assert not world.problems
    messages = servers.messages(world.kafka, world.topic)
    assert [v["op"] for _, v, _, _ in messages if v].count("r") == 35
    changed = next(v for k, v, _, _ in messages if v and k == {"id": 1} and v["op"] == "u")
    assert changed["source"]["connector"] == "toy" and changed["before"] == {"id": 1, "n": 0}
    assert changed["transaction"] == {"id": "2:2", "total_order": 1, "data_collection_order": 1}


class Crash(Exception):
    """Instead of a kill: everything after it is left undone."""


@pytest.mark.system
@pytest.mark.parametrize(
    "name",
    [
        failpoints.CHUNK_SENT,
        failpoints.CHUNK_STORED,
        failpoints.CHUNK_RECORDED,
        failpoints.COPIED,
        failpoints.CHANGE_SENT,
        failpoints.COMMIT_SENT,
        failpoints.STORED,
        failpoints.RECORDED,
    ],
)
def test_a_crash_anywhere_and_the_next_run(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def crash() -> None:
        raise Crash

    following = name in (failpoints.CHANGE_SENT, failpoints.COMMIT_SENT, failpoints.STORED, failpoints.RECORDED)
    with world.capture() as ready:
        if following:
            assert ready.wait(30)
        monkeypatch.setitem(tripped, name, crash)
        world.toy.write((1, 5), (2, None), (40, 1))
        world.toy.write((1, 6), (40, None))
        servers.wait_for(lambda: threading.active_count() and not alive(), "the crash")
    assert [type(problem) for problem in world.problems] == [Crash]
    monkeypatch.delitem(tripped, name)
    world.toy.write((3, 9))
    assert world.toy.confirmed < len(world.toy.log)
    with world.capture() as ready:
        assert ready.wait(30)
        servers.wait_for(world.equal, "the topic equals the table")
        servers.wait_for(lambda: world.toy.confirmed == len(world.toy.log), "all is confirmed")


def alive() -> bool:
    """Whether a capture's thread runs."""
    return any(t.name.endswith("(work)") for t in threading.enumerate())


@pytest.mark.system
def test_a_broken_table_stands_still_and_comes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.capture.loop.CHECK_S", 0.1)
    with world.capture() as ready:
        assert ready.wait(30)
        world.toy.broken = "numbers has no key: give it one"
        servers.wait_for(lambda: world.reports[-1]["problem"] == world.toy.broken, "it stands still")
        world.toy.write((1, None), (2, 7))
        world.toy.broken = ""
        servers.wait_for(world.equal, "it is copied again")
        servers.wait_for(lambda: world.reports[-1]["tables"][world.topic]["state"] == "streaming", "it says so")
        assert world.reports[-1]["problem"] == ""
    assert not world.problems
