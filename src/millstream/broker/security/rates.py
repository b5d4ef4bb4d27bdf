"""How much per second, measured in Kafka's two ways: over the last windows (Rate), and as what is left to take (Bucket)."""

from __future__ import annotations

import math
from collections import deque

# What additions of parts leave over: no part of anything that is counted.
ROUNDING = 1e-6


class Rate:
    """How much per second, over the last windows. Times are in milliseconds.

    Over quota.window.num windows, the running one included; a young rate is taken over all but one of them, so that a
    burst of that length at the limit is free (Rate, SampledStat in Kafka).
    """

    __slots__ = ("_count", "_samples", "_window")

    def __init__(self, window_seconds: int, count: int) -> None:
        self._window = window_seconds * 1000
        self._count = count
        self._samples: deque[tuple[int, float]] = deque()  # start, amount

    def add(self, amount: float, now: int) -> None:
        """Something happened (negative: it did not, after all)."""
        samples = self._samples
        self._forget(now)
        if samples and now - samples[-1][0] < self._window:
            start, before = samples[-1]
            samples[-1] = start, before + amount
        else:
            samples.append((now, amount))

    def span(self, now: int) -> float:
        """The seconds that the rate is taken over."""
        self._forget(now)
        elapsed = now - self._samples[0][0] if self._samples else 0
        whole = elapsed // self._window
        if whole < self._count - 1:
            elapsed += (self._count - 1 - whole) * self._window
        return max(elapsed, self._window) / 1000

    def value(self, now: int) -> float:
        """The rate per second."""
        seconds = self.span(now)
        return math.fsum(amount for _, amount in self._samples) / seconds

    def wait(self, limit: float, now: int) -> int:
        """For how many milliseconds nothing may happen to bring the rate down to a limit (QuotaUtils.throttleTime)."""
        excess = self.value(now) - limit
        return round(excess / limit * self.span(now) * 1000) if excess > 0 else 0

    def idle(self, now: int) -> bool:
        """Whether nothing is remembered."""
        self._forget(now)
        return not self._samples

    def _forget(self, now: int) -> None:
        oldest = now - self._count * self._window
        while self._samples and self._samples[0][0] <= oldest:
            self._samples.popleft()


class Bucket:
    """What may still be done: refilled at the limit, up to what the limit allows in all windows (TokenBucket in Kafka).

    For rare things of very different sizes: one large one is paid off in the time that it takes at the limit, where a
    rate would stay above it until the window of that thing is over. `seconds`: of all windows. Times are in milliseconds.
    """

    __slots__ = ("_at", "_left", "_seconds")

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._left = 0.0
        self._at = 0  # so long ago that it is full

    def take(self, amount: float, limit: float, now: int) -> None:
        """Something is done; it may be more than is left."""
        self._refill(limit, now)
        self._left = min(limit * self._seconds, self._left - amount)

    def wait(self, limit: float, now: int) -> int:
        """For how many milliseconds nothing may be done, because more was done than was left."""
        self._refill(limit, now)
        return max(1, round(-self._left / limit * 1000)) if self._left < -ROUNDING else 0

    def idle(self, limit: float, now: int) -> bool:
        """Whether it is full, as a new one."""
        self._refill(limit, now)
        return self._left >= limit * self._seconds - ROUNDING

    def _refill(self, limit: float, now: int) -> None:
        refill = limit * max(0, now - self._at) / 1000
        self._left = min(limit * self._seconds, self._left + refill)
        self._at = now
