"""How far a capture, and everybody else who follows the source's log, is behind: asked each second, by a thread of its own.

The thread has its own connection to the source, so that it also tells when the capture itself hangs: in a wait for the log, in a
long query, or in a transaction of a million rows.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from millstream.settings import MillstreamError

EVERY_S = 1.0
RETRY_S = 5.0
MAX_SAMPLES = 1000  # positions of the log that are remembered with their times
LITTLE = 0.25  # of the log that the source keeps for us is left: it says so
MAX_FOLLOWERS = 50  # others that are named

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Follower:
    """Somebody else who follows the source's log: a replica, or a slot that nobody uses. lag_seconds: None when unknown."""

    name: str
    lag_bytes: int
    lag_seconds: float | None = None


@dataclass(frozen=True)
class Look:
    """What a source says of its log. end: where it ends; kept: bytes of it that are kept for us; left: those until some are lost,
    None for no bound; connected: whether anybody follows it in our name.
    """

    end: int
    kept: int
    left: int | None
    connected: bool
    followers: Sequence[Follower] = ()


Watch = Callable[[], AbstractContextManager[Callable[[], Look]]]
"""Connects to a source and gives what looks at it."""


class Ages:
    """When the log was where: since when a position is no longer its end. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    def note(self, now: float, end: int) -> None:
        """Remember that the log ended there."""
        if self._ends and end <= self._ends[-1]:
            return
        self._times.append(now)
        self._ends.append(end)
        if len(self._ends) > MAX_SAMPLES:  # every second one of the older half; the first stays
            half = MAX_SAMPLES // 2
            self._times[:half] = self._times[:half:2]
            self._ends[:half] = self._ends[:half:2]

    def behind(self, now: float, position: int) -> float:
        """Return for how long the log has been ahead of a position, which only grows; 0 when it is not."""
        past = bisect_right(self._ends, position)
        del self._times[:past], self._ends[:past]
        return now - self._times[0] if self._times else 0.0


class LagWatch:
    """The thread. stored: how far everything is stored; tell: takes the facts.

    The facts: lag_bytes, lag_seconds (for how long the first change that is not stored has been there), kept_bytes, left_bytes,
    connected, followers and followers_seconds by name; lag_problem, alone, while the source does not answer.
    """

    def __init__(self, watch: Watch, stored: Callable[[], int], tell: Callable[[dict[str, object]], None]) -> None:
        self._watch = watch
        self._stored = stored
        self._tell = tell
        self._ages = Ages()
        self._warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-lag", daemon=True)

    def __enter__(self) -> LagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2.0)  # a daemon: a source that does not answer holds up nobody

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._watch() as look:
                    while not self._stop.is_set():
                        self._tell(self._facts(look(), time.monotonic()))
                        self._stop.wait(EVERY_S)
            except MillstreamError as error:
                self._tell({"lag_problem": str(error)})
                self._stop.wait(RETRY_S)

    def _facts(self, look: Look, now: float) -> dict[str, object]:
        self._ages.note(now, look.end)
        stored = self._stored()
        little = look.left is not None and look.left < LITTLE * (look.kept + look.left)
        if little and not self._warned:
            _log.warning(
                "the source keeps %s bytes of its log for this capture and removes them in %s bytes: see max_slot_wal_keep_size",
                look.kept,
                look.left,
            )
        self._warned = little
        return {
            "lag_bytes": max(0, look.end - stored),
            "lag_seconds": round(self._ages.behind(now, stored), 1),
            "kept_bytes": look.kept,
            "left_bytes": look.left,
            "in_danger": little,
            "connected": look.connected,
            "followers": {f.name: f.lag_bytes for f in look.followers[:MAX_FOLLOWERS]},
            "followers_seconds": {f.name: f.lag_seconds for f in look.followers[:MAX_FOLLOWERS] if f.lag_seconds},
        }
