"""How far the input has been delivered: the offset below which everything is done, although things are done out of order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from millstream.deliver.seen import Bounds

VERSION = 1
MAX_BYTES = 4000  # Kafka refuses commit metadata above 4,096 (offset.metadata.max.bytes); what is longer is left out


class Progress:
    """By partition of the input: what was read, and what of it is not done yet."""

    def __init__(self, start: Mapping[int, int]) -> None:
        """start: by partition, the next offset to read."""
        self._next = dict(start)
        self._open: dict[int, dict[int, None]] = {p: {} for p in start}  # in the order of reading
        self.open = 0  # alerts on their way, over all partitions

    def begin(self, partition: int, offset: int) -> None:
        """Note that a candidate was read and its alert is on its way."""
        self._next[partition] = offset + 1
        self._open[partition][offset] = None
        self.open += 1

    def end(self, partition: int, offset: int) -> None:
        """Note that the alert of a candidate is written."""
        del self._open[partition][offset]
        self.open -= 1

    def skip(self, partition: int, offset: int) -> None:
        """Note that a candidate was read and needs nothing."""
        self._next[partition] = offset + 1

    def done(self) -> dict[int, int]:
        """Return, by partition, the offset below which everything is done."""
        return {p: next(iter(waiting), self._next[p]) for p, waiting in self._open.items()}


@dataclass(frozen=True)
class Saved:
    """What is committed beside the input's position: whether a delivery is open, and where its memory begins.

    The text form (version 1) is a JSON object {"v", "open", "tail": {partition: offset}, "floor": {source: offset}}. One that
    would be too long leaves out tail and floor: then the whole topic is read back, which gives the same memory.
    """

    open: bool = False
    bounds: Bounds = field(default_factory=Bounds)

    def text(self) -> str:
        """Return the text form."""
        facts: dict[str, object] = {"v": VERSION, "open": self.open}
        full = _dump(facts | {"tail": self.bounds.tail, "floor": self.bounds.floor})
        return full if len(full.encode()) <= MAX_BYTES else _dump(facts)

    @classmethod
    def parse(cls, text: str | None) -> Saved:
        """Read the text form. What nobody of ours wrote counts as an open delivery with nothing known: always safe, only slow."""
        try:
            facts = json.loads(text or "")
            if facts["v"] != VERSION:
                return cls(open=True)
            tail = {int(p): int(offset) for p, offset in facts.get("tail", {}).items()}
            floor = {str(source): int(offset) for source, offset in facts.get("floor", {}).items()}
            return cls(bool(facts["open"]), Bounds(tail, floor))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls(open=True)


def _dump(facts: Mapping[str, object]) -> str:
    return json.dumps(facts, separators=(",", ":"))
