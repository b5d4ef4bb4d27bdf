"""Which alerts have been written: a memory of origins with a bound, exact for what is recent, and honest about the rest.

An origin names the events that caused an alert; its place is that of the first: topic, partition, offset. The recent ones are
kept in the order in which they were written. When there are too many, the oldest are let go, and for each source partition the
highest offset let go is kept: its floor. At or above the floor the memory is complete: an origin whose place is there and that
is not in it has never been written, since each that was let go has its own place below the floor. That needs only that a place
follows from the origin alone: so origins of several causes, or several origins of one place (rows of one event, told apart by a
hash), are as exact. Below the floor an unknown origin may have been written long ago, and only the alert's topic can tell:
`History` is what it says.

Everything here is a value: no clock, no log, no thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

# About 20 MB, and half a second to read back at the start; older origins are looked up in the topic.
MAX_RECENT = 100_000
# About 200 MB (400 MB with hashes); a repeat of an origin older than these is not recognised and goes out again.
MAX_HISTORY = 2_000_000
MAX_REST = 71  # characters of an origin behind its first cause; a longer text is remembered by its SHA-256


class Origin(NamedTuple):
    """The identity of an alert: its causes, and what tells rows of the same causes apart.

    As text: "<topic>-<partition>-<offset>", several causes divided by ",", then perhaps "#" and a hash of the row. The first
    cause is taken apart, because the bounds of the memory are kept by it; all that follows is one opaque word.
    """

    topic: str
    partition: int
    offset: int
    rest: str = ""  # what follows the first cause, as it is, or its SHA-256 where that is shorter

    @classmethod
    def parse(cls, text: str) -> Origin | None:
        """Read the text form; None when its first cause is something else."""
        end = min(len(text), *(place for mark in ",#" if (place := text.find(mark)) >= 0), len(text))
        topic, _, offset = text[:end].rpartition("-")
        topic, _, partition = topic.rpartition("-")
        if not topic or not all(number.isascii() and number.isdigit() for number in (partition, offset)):
            return None
        rest = text[end:]
        if len(rest) > MAX_REST:
            rest = "sha256:" + hashlib.sha256(rest.encode()).hexdigest()
        return cls(topic, int(partition), int(offset), rest)

    @classmethod
    def of(cls, header: bytes | None) -> Origin | None:
        """Read the header of a candidate or an alert; None for what is no identity."""
        return cls.parse((header or b"").decode(errors="replace"))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}{self.rest}"


class Verdict(Enum):
    """What the memory knows about an origin."""

    NEW = "never written"
    WRITTEN = "written, or on its way"
    UNKNOWN = "older than the memory: the topic's history decides"


@dataclass(frozen=True)
class Bounds:
    """Where the memory begins: what a restart needs to build it again from the alert's topic.

    tail: by partition of the alert's topic, the offset from which it holds every origin of the memory.
    floor: by source partition ("<topic>-<partition>"), the offset at and above which the memory is complete.
    """

    tail: Mapping[int, int] = field(default_factory=dict)
    floor: Mapping[str, int] = field(default_factory=dict)


class Seen:
    """The memory of written origins. `capacity` bounds it; entries that are not acknowledged yet are never let go."""

    def __init__(self, bounds: Bounds | None = None, capacity: int = MAX_RECENT) -> None:
        bounds = bounds or Bounds()
        self._capacity = capacity
        self._tail = dict(bounds.tail)
        self._floor = dict(bounds.floor)
        # Dicts keep the order of insertion, which is the order of writing. The value: where it stands in the alert's topic.
        self._recent: dict[Origin, tuple[int, int] | None] = {}
        self._history: set[Origin] | None = None

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def bounds(self) -> Bounds:
        """Where the memory begins now."""
        return Bounds(dict(self._tail), dict(self._floor))

    def verdict(self, origin: Origin) -> Verdict:
        """Say whether an alert of this origin was written."""
        if origin in self._recent:
            return Verdict.WRITTEN
        if origin.offset >= self._floor.get(_source(origin), 0):
            return Verdict.NEW
        if self._history is None:
            return Verdict.UNKNOWN
        return Verdict.WRITTEN if origin in self._history else Verdict.NEW

    def sending(self, origin: Origin) -> None:
        """Note that the alert is on its way."""
        self._recent[origin] = None

    def written(self, origin: Origin, partition: int, offset: int) -> None:
        """Note that the alert stands at an offset of the alert's topic, and let go of the oldest beyond the capacity.

        Within a partition, offsets must come in their order: as a producer acknowledges them, or as a reader finds them.
        """
        if (
            self._recent.get(origin) is None
        ):  # of a repeat that stands in the topic all the same, the first place counts
            self._recent[origin] = (partition, offset)
        while len(self._recent) > self._capacity:
            oldest, place = next(iter(self._recent.items()))
            if place is None:
                return  # on its way: letting it go would let its repeat through
            del self._recent[oldest]
            self._tail[place[0]] = max(self._tail.get(place[0], 0), place[1] + 1)
            self._floor[_source(oldest)] = max(self._floor.get(_source(oldest), 0), oldest.offset + 1)
            if self._history is not None:
                self._remember(oldest)

    def learn(self, history: set[Origin]) -> None:
        """Take the origins of everything before the tail: nothing is unknown from now on."""
        self._history = history

    def _remember(self, origin: Origin) -> None:
        if self._history is not None and len(self._history) < MAX_HISTORY:
            self._history.add(origin)


def _source(origin: Origin) -> str:
    return f"{origin.topic}-{origin.partition}"
