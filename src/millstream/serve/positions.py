"""Reading the log: topics, where they end, how fast they grow, and how far the consumer groups are behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millstream.client.admin import LATEST, Offsets, TopicFacts, describe_topics, offsets
from millstream.monitor.lag import Lag, all_lags, lags
from millstream.serve.activity import Activity
from millstream.serve.rates import Rates
from millstream.serve.state import Connection
from millstream.settings import Kafka, MillstreamError

LOOKING_S = 1.0  # between readings while somebody looks
IDLE_S = 15.0  # and while nobody does: enough to know that the log answers, and for the first rate
DESCRIBE_S = 10.0  # topics, their first offsets and settings change rarely
SILENT_S = 3.0  # a reading that takes longer is shown as a log that does not answer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What the log said. at: when it was asked, epoch seconds; rates, histories: events/s by topic."""

    at: float = 0.0
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    lags: tuple[Lag, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    histories: Mapping[str, list[float]] = field(default_factory=dict)


class Positions:
    """Reads the log in a thread (`run`). `reading` is replaced, never changed in place, so any thread may look at it.

    groups: the consumer groups to look at; None for every group of the log.
    """

    def __init__(self, kafka: Kafka, activity: Activity, groups: Sequence[str] | None = None) -> None:
        self.reading = Reading()
        self.error: str | None = None
        self._kafka = kafka
        self._activity = activity
        self._groups = groups
        self._rates = Rates()
        self._began: float | None = None  # of the reading under way
        self._described = 0.0
        self._topics: dict[str, TopicFacts] = {}

    @property
    def connection(self) -> Connection:
        """Whether the log answers, and since when it has not."""
        began = self._began
        silent = time.monotonic() - began if began is not None else 0.0
        error = self.error
        if error is None and silent > SILENT_S:
            error = f"{self._kafka.bootstrap} has been silent for {silent:.0f} s."
        known = self.reading.at > 0
        return Connection("Kafka log", known and error is None, error, self.reading.at if known else None)

    def run(self) -> None:
        """Read until the end."""
        while True:
            self._began = time.monotonic()
            try:
                self.reading = self._read()
                self.error = None
            except MillstreamError as error:
                if self.error is None:
                    _log.warning("the log cannot be read, trying again: %s", error)
                self.error = str(error)
                self._described = 0.0
            except Exception as error:  # a mistake of ours must not silence the page for good
                _log.exception("reading the log failed")
                self.error = f"reading the log failed: {error}"
            self._began = None
            if not self._activity.rest(LOOKING_S, IDLE_S):
                return

    def _read(self) -> Reading:
        at, now = time.time(), time.monotonic()
        if now - self._described >= DESCRIBE_S:
            self._topics = {t.name: t for t in describe_topics(self._kafka)}
            self._described = now
        ends = offsets(self._kafka, [(t.name, p) for t in self._topics.values() for p in t.end], LATEST)
        behind = self._lags() if self._activity.looking else self.reading.lags
        totals: dict[str, int] = dict.fromkeys(self._topics, 0)
        for (name, _), end in ends.items():
            totals[name] += end
        self._rates.add(time.monotonic(), totals)
        return Reading(
            at=at,
            topics=dict(self._topics),
            ends=ends,
            lags=behind,
            rates={name: self._rates.now(name) for name in totals},
            histories={name: self._rates.history(name) for name in totals},
        )

    def _lags(self) -> tuple[Lag, ...]:
        return tuple(all_lags(self._kafka) if self._groups is None else lags(self._kafka, self._groups))
