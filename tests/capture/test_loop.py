"""A toy source through the loop and the sink into a real log: what any source gets from this room, crash and resume included."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millstream.app.inputs import Table
from millstream.app.sources import PostgresTable
from millstream.capture import failpoints
from millstream.capture.loop import Capture
from millstream.capture.sink import KafkaSink
from millstream.capture.source import Source, TableProblem
from millstream.settings import Kafka
from millstream.settings.failpoints import tripped
from tests import servers
from tests.brokers import fresh
from tests.capture.toy import COLUMNS, Toy, ToySource  # noqa: F401


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


@pytest.mark.system
def test_a_copy_that_fails_is_begun_again_after_ten_times_as_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.capture.loop.CHECK_S", 0.05)
    begun: list[float] = []

    def fail() -> None:
        begun.append(time.monotonic())
        time.sleep(0.1)
        raise TableProblem("a row of it is too large")

    monkeypatch.setitem(tripped, failpoints.CHUNK_SENT, fail)
    with world.capture() as ready:
        servers.wait_for(lambda: len(begun) == 3, "it is tried again")
        assert world.reports[-1]["problem"] == "a row of it is too large"
        assert begun[1] - begun[0] > 1.0 and begun[2] - begun[1] > 1.0  # ten times as long as it took
        monkeypatch.delitem(tripped, failpoints.CHUNK_SENT)
        servers.wait_for(world.equal, "it is copied when that was mended")
        assert ready.is_set()
    assert not world.problems


@pytest.mark.system
def test_no_value_goes_back_while_a_table_is_copied_and_written_to(world: World) -> None:
    ticks = itertools.count(1)

    def write() -> None:
        n = next(ticks)
        world.toy.write(*((i, n) for i in range(1, 36) if i % 3 == 0))
        world.toy.write((100 + n, n), (50 + n, n))
        world.toy.write((100 + n, None), (2, None))
        world.toy.write((2, n))

    world.toy.writing = write
    with world.capture() as ready:
        assert ready.wait(30)
        servers.wait_for(world.equal, "the topic equals the table")
    assert not world.problems and next(ticks) > 8
    seen: dict[int, int] = {}
    copied: set[int] = set()
    for key, value, _, _ in servers.messages(world.kafka, world.topic):
        number = key["id"]
        if value is None or value["op"] == "d":
            continue
        assert value["after"]["n"] >= seen.get(number, 0), f"{value} after n = {seen.get(number)}"
        assert value["op"] != "r" or number not in copied
        seen[number] = value["after"]["n"]
        copied |= {number} if value["op"] == "r" else set()
    gone = {100 + n for n in range(1, 30)}
    assert not copied & gone
