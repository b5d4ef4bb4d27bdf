"""Rates from counters that are read now and then: events per second now, and their history for a sparkline."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import pairwise

KEPT_S = 75.0  # samples older than this are forgotten: a little more than the sparkline shows
NOW_S = 4.0  # a rate "now" is the mean over so many seconds: a single second flickers
MAX_NAMES = 2_000  # counters that are followed; further ones have no rate


class Rates:
    """Samples of counters by name. A counter that falls (a topic made again) starts afresh."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def add(self, at: float, counters: Mapping[str, int]) -> None:
        """Take in what the counters were at `at` (seconds, growing). Counters that are not there any more are forgotten."""
        for gone in self._samples.keys() - counters.keys():
            del self._samples[gone]
        for name, value in counters.items():
            if name not in self._samples and len(self._samples) >= MAX_NAMES:
                continue
            samples = self._samples.setdefault(name, deque())
            if samples and value < samples[-1][1]:
                samples.clear()
            samples.append((at, value))
            while samples[0][0] < at - KEPT_S:
                samples.popleft()

    def now(self, name: str) -> float:
        """Return events per second over the last NOW_S seconds of samples, 0 with fewer than two samples."""
        samples = self._samples.get(name)
        if not samples or len(samples) < 2:
            return 0.0
        last_at, last = samples[-1]
        first_at, first = next((s for s in samples if s[0] >= last_at - NOW_S - 0.25), samples[-2])
        if first_at == last_at:
            first_at, first = samples[-2]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    def history(self, name: str, seconds: int = 60) -> list[float]:
        """Return events per second for each of the last `seconds` seconds, oldest first; fewer when samples do not reach back."""
        samples = self._samples.get(name)
        if not samples or len(samples) < 2:
            return []
        end = samples[-1][0]
        length = min(seconds, int(end - samples[0][0] + 0.5))
        counts = [_at(samples, end - s) for s in range(length, -1, -1)]
        return [max(0.0, later - earlier) for earlier, later in pairwise(counts)]


def _at(samples: deque[tuple[float, int]], at: float) -> float:
    """Return the counter at a moment, on the line between the samples around it."""
    index = bisect_left(samples, (at, 0))
    if index == 0:
        return samples[0][1]
    if index == len(samples):
        return samples[-1][1]
    (t0, v0), (t1, v1) = samples[index - 1], samples[index]
    return v0 + (v1 - v0) * (at - t0) / (t1 - t0) if t1 > t0 else v1
