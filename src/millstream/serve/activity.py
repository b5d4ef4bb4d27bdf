"""Whether anybody looks: what reads from servers runs every second while somebody does, and almost never otherwise."""

from __future__ import annotations

import threading
import time

LOOKING_S = 10.0  # after a request without a stream (curl, a reload) reading continues for so long


class Activity:
    """Shared by the page's readers (threads) and its requests. `watchers` is the number of open event streams."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._changed = threading.Condition()
        self._watchers = 0
        self._until = 0.0
        self._wishes = 0

    @property
    def looking(self) -> bool:
        """Whether somebody looks now."""
        return self._watchers > 0 or time.monotonic() < self._until

    @property
    def ended(self) -> bool:
        """Whether the console is to stop."""
        return self._stop.is_set()

    def watch(self, change: int) -> None:
        """Note that an event stream was opened (+1) or has ended (-1)."""
        with self._changed:
            self._watchers += change
            self._until = time.monotonic() + LOOKING_S
            self._changed.notify_all()

    def touch(self) -> None:
        """Note a request: the readers read at once, if they were resting."""
        with self._changed:
            self._until = time.monotonic() + LOOKING_S
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake the readers, for the end."""
        with self._changed:
            self._changed.notify_all()

    def rest(self, looking_s: float, idle_s: float | None) -> bool:
        """Wait until the next reading is due: `looking_s` while somebody looks, `idle_s` (None: no reading) otherwise.

        Returns False at the end.
        """
        began = time.monotonic()
        with self._changed:
            while not self._stop.is_set():
                now = time.monotonic()
                due = looking_s if self.looking else idle_s
                if due is not None and now - began >= due:
                    return True
                limits = [began + due] if due is not None else []
                if self._watchers == 0 and now < self._until:
                    limits.append(self._until)
                self._changed.wait(max(0.0, min(limits) - now) if limits else None)
        return False
