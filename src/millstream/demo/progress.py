"""What the replay says about itself in the status topic: kind "replay", name "flights"."""

from __future__ import annotations

import time

from millstream.demo import data
from millstream.demo.options import Options
from millstream.monitor.status import Reporter


class Progress:
    """What the replay says about itself: kind "replay" in the status topic."""

    def __init__(self, reporter: Reporter, options: Options) -> None:
        self._reporter = reporter
        self._options = options
        self._state = "starting"
        self._error: str | None = None
        self._mark = (time.monotonic(), 0)
        self.total: int | None = None
        self.resumed = 0  # stored before this run of the process
        self.sent = 0  # acknowledged, by this and earlier runs
        self.minute: int | None = None  # of the newest message sent
        self.rate = 0.0

    def state(self, state: str, error: str | None = None) -> None:
        """Say what the replay is doing: loading, running, changing a plane, resuming, done, stopped, failed."""
        self._state, self._error = state, error
        self.report()

    def tick(self) -> None:
        """Report at most once a second."""
        if time.monotonic() - self._mark[0] >= 1:
            self.report()

    def report(self) -> None:
        """Report now."""
        now = time.monotonic()
        if (elapsed := now - self._mark[0]) > 0.2:
            self.rate = max(0, self.sent - self._mark[1]) / elapsed
            self._mark = (now, self.sent)
        self._reporter.report(
            "replay",
            "flights",
            state=self._state,
            error=self._error,
            sent=self.sent,
            total=self.total,
            resumed=self.resumed,
            event_time=None if self.minute is None else data.at(self.minute).isoformat(),
            rate=round(self.rate, 1),
            days=self._options.days,
            speed=self._options.speed,
            bad=self._options.bad,
        )
