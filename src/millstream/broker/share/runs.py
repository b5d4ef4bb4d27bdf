"""Offsets of a share partition in runs: neighbours that are in the same state, as one value. Pure.

Runs are sorted, do not overlap, and leave no offset out between the first and the last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """As Kafka's `__share_group_state` numbers them; ACQUIRED is never stored (RecordState)."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def done(self) -> bool:
        """Whether the offset is never delivered again."""
        return self in (State.ACKNOWLEDGED, State.ARCHIVED)


class Run(NamedTuple):
    """Offsets `first` to `last` (inclusive). Of acquired ones: by whom, and until when (seconds on the caller's clock)."""

    first: int
    last: int
    state: State
    deliveries: int = 0  # the present one included
    member: str = ""
    deadline: float = 0.0

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> Run:
        """The part of it that lies in a range."""
        return self._replace(first=max(self.first, first), last=min(self.last, last))

    def like(self, other: Run) -> bool:
        """Whether both say the same of their offsets."""
        return self[2:] == other[2:]


def within(runs: list[Run], first: int, last: int) -> Iterator[Run]:
    """The runs, or the parts of them, that lie in a range, which may be empty."""
    if last < first:
        return
    at = max(bisect_right(runs, first, key=lambda run: run.first) - 1, 0)
    for run in runs[at:]:
        if run.first > last:
            return
        if run.last >= first:
            yield run.part(first, last)


def overlaid(runs: list[Run], over: Run) -> list[Run]:
    """The runs with another one in place of its offsets, or beside them; offsets between become available."""
    if not runs:
        return [over]
    first, last = runs[0].first, runs[-1].last
    made = [*within(runs, first, over.first - 1), over, *within(runs, over.last + 1, last)]
    if over.first > last + 1:
        made.insert(-1, Run(last + 1, over.first - 1, State.AVAILABLE))
    elif over.last < first - 1:
        made.insert(1, Run(over.last + 1, first - 1, State.AVAILABLE))
    return joined(made)


def joined(runs: Iterable[Run]) -> list[Run]:
    """Neighbours that say the same become one."""
    made: list[Run] = []
    for run in runs:
        if made and made[-1].last + 1 == run.first and made[-1].like(run):
            made[-1] = made[-1]._replace(last=run.last)
        else:
            made.append(run)
    return made
