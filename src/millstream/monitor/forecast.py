"""When retention will overtake a consumer group: a forecast from a few samples of one partition. Pure: values in, values out.

What a group has not read yet is lost when retention deletes it. Two rules of Kafka's say when that may happen, both as bounds
that are never too late: a segment goes `retention.ms` after its newest message, so not before the group's next message is that
old; and the oldest segment goes while the rest still holds `retention.bytes`, so not before what the group has yet to read is
that much. Where neither is set or known, but the log's start moves (DeleteRecords), its own pace counts. Against each stands the
pace of the group, seen over half of the time that is left, so that a group that has stopped is soon seen as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Literal

MAX_SAMPLES = 120  # of one partition; the oldest go: paces older than that are no news
WINDOW_S = 900.0  # samples older than this say nothing about now
WARN_S = 600.0  # a person wants so much time to act, where the retention is long enough
SHARE = 0.25  # and where it is not: the last quarter of it
INTERVALS = 3.0  # but always so many samples ahead, or the loss might come between two

By = Literal["time", "size", "start"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One partition and one group at a moment. Offsets as in Kafka: `committed` and `end` are the next to come.

    at: epoch seconds. written_at: the timestamp of the first message that the group has yet to read, epoch seconds; None when
    it is not known or there is none. size: bytes that an offset takes in the log, rather too large than too small.
    """

    at: float
    start: int
    committed: int
    end: int
    written_at: float | None = None
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps what it holds: seconds and bytes per partition, None for no limit."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Loss begins in `seconds`, not earlier, if everybody continues as now; infinity: never. `by` says what causes it.

    at_rest: the same if the group read nothing more. horizon: for how many seconds the log keeps an event at all, at the
    present pace.
    """

    seconds: float
    at_rest: float
    horizon: float
    by: By

    def urgent(self, interval: float) -> bool:
        """Whether it is time to warn, when there is a sample every `interval` seconds."""
        soon = INTERVALS * interval
        return self.at_rest <= soon or self.seconds <= max(soon, min(WARN_S, SHARE * self.horizon))


class History:
    """The last samples of one group in one partition, bounded in number and age."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Take the next sample. One that goes back (the topic was made again, the group was reset) begins the history again."""
        if self.samples and _went_back(self.samples[-1], sample):
            self.samples.clear()
        self.samples.append(sample)
        while sample.at - self.samples[0].at > WINDOW_S:
            self.samples.popleft()


def forecast(samples: Sequence[Sample], retention: Retention) -> Forecast | None:
    """Return when the group will begin to lose events, or None when it has nothing to lose or nothing is ever deleted."""
    if not samples or samples[-1].committed >= samples[-1].end:
        return None
    if samples[-1].committed < samples[-1].start:
        return Forecast(0.0, 0.0, 0.0, "start")  # it has begun
    found = [f for f in (_by_time(samples, retention), _by_size(samples, retention)) if f]
    if not found and retention.seconds is None and retention.bytes is None and (moved := _by_start(samples)):
        found = [moved]
    return min(found, key=lambda f: (f.seconds, f.at_rest), default=None)


def _by_time(samples: Sequence[Sample], retention: Retention) -> Forecast | None:
    last = samples[-1]
    if retention.seconds is None or last.written_at is None:
        return None
    left = max(0.0, last.written_at + retention.seconds - last.at)
    before = next((s for s in _within(samples, left / 2) if s.written_at is not None), last)
    passed = last.at - before.at
    # The age at which messages go advances by a second each second; the group by as much as it works off.
    pace = max(0.0, last.written_at - (before.written_at or 0.0)) / passed if passed > 0 else 0.0
    return _meeting(left, 1.0, 1.0 - pace, retention.seconds, "time")


def _by_size(samples: Sequence[Sample], retention: Retention) -> Forecast | None:
    last = samples[-1]
    if retention.bytes is None or not last.size:
        return None
    left = max(0.0, retention.bytes - (last.end - last.committed) * last.size)
    written = _pace([s.end for s in samples], samples) * last.size
    if written <= 0:
        return None
    recent = _within(samples, left / written / 2)
    read = _pace([s.committed for s in recent], recent) * last.size
    newly = _pace([s.end for s in recent], recent) * last.size
    return _meeting(left, written, max(written, newly) - read, retention.bytes / written, "size")


def _by_start(samples: Sequence[Sample]) -> Forecast | None:
    last = samples[-1]
    gone = _pace([s.start for s in samples], samples)
    if gone <= 0:
        return None
    step = max(b.start - a.start for a, b in pairwise(samples))  # the start moves by whole segments
    left = max(0, last.committed - last.start - step)
    recent = _within(samples, left / gone / 2)
    closing = gone - _pace([s.committed for s in recent], recent)
    return _meeting(left, gone, closing, (last.end - last.start) / gone, "start")


def _meeting(left: float, pace: float, closing: float, horizon: float, by: By) -> Forecast:
    return Forecast(left / closing if closing > 0 else inf, left / pace, horizon, by)


def _within(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """The samples of the last `seconds`, at least two if there are two."""
    recent = [s for s in samples if samples[-1].at - s.at <= seconds]
    return recent if len(recent) > 1 else list(samples)[-2:]


def _pace(values: Sequence[int], samples: Sequence[Sample]) -> float:
    passed = samples[-1].at - samples[0].at
    return (values[-1] - values[0]) / passed if passed > 0 else 0.0


def _went_back(before: Sample, now: Sample) -> bool:
    return now.at < before.at or now.start < before.start or now.end < before.end or now.committed < before.committed
