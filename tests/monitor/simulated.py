"""A partition of a log with retention, and a group that reads it, on a clock of their own."""

from dataclasses import dataclass, field

from millstream.monitor.forecast import Retention, Sample


@dataclass
class Log:
    """Messages of one size in segments of so many; retention looks every `check` seconds and follows Kafka's rules."""

    retention: Retention
    segment: int
    size: float
    check: float
    now: float = 1_000_000.0
    start: int = 0
    committed: int = 0
    missed: set[int] = field(default_factory=set)
    times: list[float] = field(default_factory=list)
    _checked: float = 1_000_000.0

    @property
    def end(self) -> int:
        return len(self.times)

    def pass_time(self, seconds: float, written: int, read: int) -> None:
        """Let time pass, in which so many messages were written and the group read at most so many, in that order."""
        self.times += [self.now + seconds * (i + 1) / (written + 1) for i in range(written)]
        self.now += seconds
        if read:
            self.committed = min(self.end, max(self.committed, self.start) + read)
        if self.now - self._checked >= self.check:
            self._checked = self.now
            self._retain()

    def _retain(self) -> None:
        start = self.start
        while start < self.end:
            until = min(self.end, (start // self.segment + 1) * self.segment)
            old = self.retention.seconds is not None and self.now - self.times[until - 1] > self.retention.seconds
            much = self.retention.bytes is not None and (self.end - until) * self.size >= self.retention.bytes
            if not (old or much):
                break
            start = until
        self.missed |= set(range(max(self.start, self.committed), start))
        self.start = start

    def sample(self) -> Sample:
        unread = max(self.committed, self.start)
        written_at = self.times[unread] if unread < self.end else None
        return Sample(self.now, self.start, self.committed, self.end, written_at, self.size)
