"""What the user may choose about the replay, and the input that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.app.inputs import Topic
from millstream.demo import data, malformed
from millstream.demo.sequence import ARRIVALS, DEPARTURES, Replay
from millstream.settings import MillstreamError


@dataclass(frozen=True)
class Options:
    """What is replayed. speed: seconds of events per second, None for as fast as possible. bad: how many malformed events."""

    days: int = 7
    speed: float | None = None
    bad: int = malformed.DEFAULT
    seed: int = 0

    def __post_init__(self) -> None:
        data.check_days(self.days)
        if self.speed is not None and not self.speed > 0:
            raise MillstreamError(f"--speed must be positive (seconds of flights per second) or max, got {self.speed}.")
        if self.bad < 0:
            raise MillstreamError(f"--bad must not be negative, got {self.bad}.")

    def replay(self, partitions: Mapping[str, int] | None = None) -> Replay:
        """Return the input: the flights as events of the application. Loads the application, which loads pyspark."""
        from millstream.demo import flights as application

        declared = {t.name: t.partitions for t in topics()}
        return Replay(
            data.flights(self.days),
            application.Departure,
            application.Arrival,
            partitions or declared,
            self.bad,
            self.seed,
        )


def speed(text: str) -> float | None:
    """Return the speed that a user gave: a number, or None for "max"."""
    if text == "max":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise MillstreamError(
            f'--speed must be a number (seconds of flights per second) or "max", got {text!r}.'
        ) from error


def topics() -> tuple[Topic, Topic]:
    """Return the topics of departures and arrivals as the application declares them. Loads it."""
    from millstream.demo.flights import app

    return app.topics[DEPARTURES], app.topics[ARRIVALS]
