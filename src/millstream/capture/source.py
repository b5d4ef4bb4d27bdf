"""What a capture needs of a source: positions in its log, changes after one, rows of a table at one. A new kind is a folder here.

A position is a number that grows along the source's log. Nothing else of it is known here: it is compared, saved, and given
back. Changes come in the order of their commits, one transaction at a time, and in the same order again when they are asked for
again. Row values are what JSON can hold (see millstream.event for the kinds).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from millstream.app.inputs import Table
from millstream.capture.envelope import Column
from millstream.capture.lag import Look
from millstream.settings import MillstreamError

Row = dict[str, object]


class TableProblem(MillstreamError):
    """A table that cannot be captured as it is. It says what to type; the other tables have nothing to do with it."""


@dataclass(frozen=True)
class SourceTable:
    """A table of the source as it is now.

    id: tells the table from another one that is made later under its name. key: the primary key's columns.
    signature: a text for each column that stays while the column is the same one, of the same type: "number:type".
    defaulted: columns whose rows may have a value although no row was written. estimate: about how many rows there are.
    """

    id: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    signature: Mapping[str, str]
    defaulted: frozenset[str]
    estimate: int

    @property
    def full_name(self) -> str:
        """schema.table, for messages."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Receiver(Protocol):
    """Takes what a source reads from its log. Rows are whole; what is before a change is, unless `full`, its key alone."""

    def begin(self, transaction: int, at_ms: int, commit: int) -> None:
        """Take the start of a transaction: its id, the epoch ms of its commit, and the commit's position."""

    def schema(self, topic: str, schema: str, table: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Take the columns that the rows of a topic have from here on."""

    def insert(self, topic: str, row: Row, position: int) -> None:
        """Take a new row."""

    def update(self, topic: str, before: Row | None, full: bool, row: Row, position: int) -> None:
        """Take a changed row; `before` may be None when the key is as it was."""

    def delete(self, topic: str, before: Row, full: bool, position: int) -> None:
        """Take a deleted row."""

    def truncate(self, topic: str, position: int) -> None:
        """Take that a table was emptied."""

    def commit(self) -> None:
        """Take the end of a transaction."""

    def problem(self, topic: str, reason: str) -> None:
        """Take that the changes of a table cannot be told from here on."""


class Chunk(Protocol):
    """Rows of a table as they are at one moment, behind all that was received."""

    @property
    def position(self) -> int:
        """Where the log stood, or a little later: every change that the rows show was committed before it."""

    @property
    def at_ms(self) -> int:
        """The source's clock then, in epoch milliseconds."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows once, in the order of the key."""

    @property
    def last(self) -> list[str] | None:
        """The key of the last row, in text, once the rows were read; None when the table ends with them."""

    @property
    def changed(self) -> bool:
        """Whether the table was locked or is another one now, so that this is no chunk of it: ask again."""


class Source(Protocol):
    """A database whose tables are captured. Every call may raise MillstreamError, Unreachable for what waiting may mend."""

    @property
    def connector(self) -> str:
        """The kind of source, as Debezium names it."""

    @property
    def database(self) -> str:
        """The database's own name."""

    @property
    def identity(self) -> str:
        """What positions are positions of: the server and, where there are such, its timeline. `cannot_resume` compares it."""

    def cannot_resume(self, identity: str, position: int) -> str:
        """Return why the log cannot be followed from a position of the source with that identity, in words; "" when it can."""

    def describe(self, table: Table) -> SourceTable:
        """Return a table as it is now. Raises TableProblem when it cannot be captured."""

    def watched(self) -> set[str] | None:
        """Return the full names of the tables whose changes are kept for us; None when all that was kept is gone."""

    def watch(self, tables: Sequence[SourceTable]) -> dict[str, str]:
        """Have the changes of exactly these tables kept; return why not, by full name, where that failed."""

    def wait_until_free(self, stop: threading.Event) -> None:
        """Wait until the connection of a killed capture has let go of our place in the log."""

    def start_over(self, stop: threading.Event) -> int:
        """Have the log kept from now on and return that position: every change before it is in the tables."""

    def mark(self) -> int:
        """Return a mark for `passed`: writes to a table that run now may be in no log of ours, as it was not watched."""

    def passed(self, mark: int) -> bool:
        """Whether everything that ran at the mark has ended."""

    def holding_up(self) -> str:
        """Return what has run longest, in words."""

    def follow(self, position: int, receiver: Receiver) -> None:
        """Begin to receive the transactions that were committed behind the position."""

    def capture(self, tables: Mapping[str, tuple[SourceTable, Mapping[str, str]]]) -> None:
        """Give the receiver these tables' changes from now on, by topic; with the signature that the state knows of each."""

    def receive(self, seconds: float) -> bool:
        """Give the receiver what has arrived, for at most `seconds`; returns whether there was anything."""

    @property
    def received(self) -> int:
        """Up to here the receiver has everything."""

    def wait(self, seconds: float) -> None:
        """Wait until something may have arrived."""

    def nudge(self) -> None:
        """Have what is in the log by now reach us soon: a source may hold back what no commit waits for."""

    def confirm(self, position: int) -> None:
        """Let the source forget its log up to a position. Repeating it keeps the connection."""

    def end(self) -> int:
        """Return how far the log is, with what may still be lost by a crash."""

    def watching(self) -> AbstractContextManager[Callable[[], Look]]:
        """Connect for another thread, and give what looks at the log and its followers (see lag.py)."""

    def chunk(self, table: SourceTable, after: list[str] | None) -> AbstractContextManager[Chunk]:
        """Read rows behind a key. Raises TableProblem when they cannot be read."""

    def count(self, table: SourceTable, at_most: int) -> int:
        """Count the rows of a table."""


Open = Callable[[Callable[[], bool]], AbstractContextManager[Source]]
"""Connects to a source. The argument is called during long work; False means that the capture is to stop."""
