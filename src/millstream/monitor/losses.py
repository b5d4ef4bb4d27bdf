"""Which events a consumer group has missed, exactly by offset, from samples of its position and the log's start. Pure.

Missed means: deleted before the group had committed them. That is certain when a sample shows the group before the log's start.
When start and group both passed an offset between two samples, nobody can say who was first: that is reported as possible.
A consumer that reads ahead of its commits may have seen events that count as missed here; after a restart it would not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millstream.monitor.forecast import Sample


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets that a group has missed in a partition: `first` up to `until`, which is not among them; and possibly up to
    `possible`, where that is larger.

    over: the group has gone on behind them; until then the loss may grow. id: the first offset as it was first told.
    """

    id: int
    first: int
    until: int
    possible: int
    over: bool

    @property
    def certain(self) -> int:
        """The number of offsets that were missed for certain."""
        return self.until - self.first


class Losses:
    """Follows one group in one partition. `open`: the loss that the group stands before, if any; it may be handed in again."""

    def __init__(self, open: Loss | None = None) -> None:
        self.open = open
        self._last: Sample | None = None

    def take(self, sample: Sample) -> list[Loss]:
        """Take the next sample; return the losses that are new or have changed, oldest first."""
        before, self._last = self._last, sample
        if before is not None and (sample.end < before.end or sample.start < before.start):
            before, self.open = None, None  # the topic was made again
        known, self.open = self.open, None
        told = []
        if known is not None and known.first <= sample.committed:
            if sample.committed < known.until:
                # What it has committed meanwhile it had read in time: the rest is what it missed.
                self.open = replace(known, first=sample.committed, until=sample.start, possible=sample.start)
                return [self.open] if self.open != known else []
            possible = max(known.until, min(sample.start, sample.committed))
            told.append(replace(known, possible=possible, over=True))
        elif before is not None and before.start <= before.committed < min(sample.start, sample.committed):
            first = before.committed
            told.append(Loss(first, first, first, min(sample.start, sample.committed), over=True))
        if sample.committed < sample.start:
            self.open = Loss(sample.committed, sample.committed, sample.start, sample.start, over=False)
            told.append(self.open)
        return told
