"""How fast the replay may go: never too far ahead of what the log has acknowledged, and as fast as was asked."""

from __future__ import annotations

from collections import deque


class Pacer:
    """Holds back an event that is further ahead, in event time, than an unacknowledged one allows.

    The partitions of a topic then stay within `ahead` minutes of each other, whatever a broker does: with half a topic's
    lateness here, nothing that was sent in time is ever dropped as late. Events are sent in the order of their time.
    """

    def __init__(self, ahead: float) -> None:
        """ahead: minutes of event time."""
        self.ahead = ahead
        self._flying: deque[tuple[int, int]] = deque()  # (index, minute) in the order of sending
        self._landed: set[int] = set()  # acknowledged, but behind one that is not

    @property
    def waiting(self) -> int:
        """The number of unacknowledged events."""
        return len(self._flying) - len(self._landed)

    def may_send(self, minute: int) -> bool:
        """Tell whether an event of that time may be sent now."""
        return not self._flying or minute - self._flying[0][1] <= self.ahead

    def sent(self, index: int, minute: int) -> None:
        """Note that an event was handed to the producer. Raises ValueError when it may not be sent or comes out of order."""
        if not self.may_send(minute):
            raise ValueError(f"event {index} is more than {self.ahead} minutes ahead of an unacknowledged one")
        if self._flying and (index, minute) <= self._flying[-1]:
            raise ValueError(f"event {index} comes after event {self._flying[-1][0]}: they are sent in order")
        self._flying.append((index, minute))

    def acknowledged(self, index: int) -> None:
        """Note that the log has stored the event."""
        self._landed.add(index)
        while self._flying and self._flying[0][0] in self._landed:
            self._landed.discard(self._flying.popleft()[0])


class Clock:
    """When an event is due: `speed` minutes of events per minute of ours, counted from the first event that is sent.

    speed: event seconds per second, or None for as fast as possible.
    """

    def __init__(self, speed: float | None, first: int, now: float) -> None:
        """first: minute of the first event. now: seconds of a monotonic clock."""
        self.speed = speed
        self._first = first
        self._began = now

    def wait(self, minute: int, now: float) -> float:
        """Return the seconds until an event of that minute is due; 0 when it is due or overdue."""
        if self.speed is None:
            return 0.0
        return max(0.0, self._began + (minute - self._first) * 60 / self.speed - now)
