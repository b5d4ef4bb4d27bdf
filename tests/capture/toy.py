"""A source in memory: what a new kind of source needs, and no more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from millstream.app.inputs import Table
from millstream.capture.envelope import Column
from millstream.capture.lag import Look
from millstream.capture.source import Receiver, Row, SourceTable, TableProblem

COLUMNS = (Column("id", "long", False), Column("n", "long"))


@dataclass
class Toy:
    """A database in memory: one table, and a list of transactions, whose places in it are the positions."""

    log: list[list[tuple[str, Row | None, Row | None]]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    confirmed: int = 0
    watching: bool = False
    broken: str = ""
    writing: Callable[[], None] = lambda: None  # before a chunk is read, and before it is sent

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

    def cannot_resume(self, identity: str, position: int) -> str:
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

    def nudge(self) -> None: ...

    def confirm(self, position: int) -> None:
        self.toy.confirmed = position

    def end(self) -> int:
        return len(self.toy.log)

    @contextmanager
    def watching(self) -> Iterator[Callable[[], Look]]:
        yield lambda: Look(len(self.toy.log), len(self.toy.log) - self.toy.confirmed, None, True)

    @contextmanager
    def chunk(self, table: SourceTable, after: list[str] | None) -> Iterator[ToyChunk]:
        self.toy.writing()
        yield ToyChunk(self.toy, int(after[0]) if after else 0)
        self.toy.writing()

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
