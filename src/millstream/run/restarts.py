"""When to start a process again: after a pause that doubles, forgotten after good health, given up if it never came up."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Pace:
    """Times of the supervision, in seconds. Tests shorten them with `scaled`.

    first, most: the first pause before a restart, and the longest; each is twice the one before.
    healthy: having been ready this long, a process counts as sound: the next pause is the first one again.
    tries: a process that was never ready is given up after so many starts.
    sweep: how long what a dead process left behind (a JVM, a postmaster) may take to end by itself.
    takeover: how long the processes of a killed supervisor may take to end before they are killed.
    slow: a start that takes longer shows the last line of the process's log.
    """

    first: float = 0.2
    most: float = 10.0
    healthy: float = 30.0
    tries: int = 5
    sweep: float = 5.0
    takeover: float = 15.0
    slow: float = 5.0

    def scaled(self, factor: float) -> Pace:
        """Return the same pace with every time multiplied."""
        return replace(
            self,
            first=self.first * factor,
            most=self.most * factor,
            healthy=self.healthy * factor,
            sweep=self.sweep * factor,
            takeover=self.takeover * factor,
            slow=self.slow * factor,
        )


class Restarts:
    """The history of one process's starts. Pure: the clock comes in with each call."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0
        self._ready_at: float | None = None
        self.ever_ready = False
        self.count = 0  # restarts so far, for the user

    def ready(self, now: float) -> None:
        """The process has become ready."""
        self.ever_ready = True
        self._ready_at = now

    def ended(self, now: float, *, hopeless: bool = False) -> float | None:
        """The process has ended; return the seconds to wait before the next start, or None to give up.

        hopeless: it said that trying again is of no use (a mistake in the application or the settings).
        """
        if self._ready_at is not None and now - self._ready_at >= self._pace.healthy:
            self._failures = 0
        self._ready_at = None
        self._failures += 1
        if not self.ever_ready and (hopeless or self._failures >= self._pace.tries):
            return None
        self.count += 1
        # The exponent is bounded, so that a process failing for weeks does not overflow a float.
        return min(self._pace.first * 2.0 ** min(self._failures - 1, 30), self._pace.most)
