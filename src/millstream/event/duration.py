"""Durations as users write them: "2 hours", "90 seconds", or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from millstream.settings import MillstreamError

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "second": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "minute": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "hour": timedelta(hours=1),
    "d": timedelta(days=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
LONGEST = timedelta(days=36_500)  # a hundred years; Spark counts microseconds in 64 bits
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def duration(value: str | timedelta, what: str = "") -> timedelta:
    """Return `value` as a timedelta: "2 hours", "1 day 12 hours", "500 ms", or a timedelta itself.

    what: what it is the duration of, which begins the message.
    Raises MillstreamError when it cannot be read, is not positive, or is longer than LONGEST.
    """
    where = f"{what}: " if what else ""
    if isinstance(value, timedelta):
        total = value
    else:
        found = _read(value) if isinstance(value, str) else None
        if found is None:
            raise MillstreamError(f'{where}expected a duration such as "2 hours" or "90 seconds", got {value!r}.')
        total = found
    if total <= timedelta():
        raise MillstreamError(f'{where}expected a positive duration such as "2 hours", got {value!r}.')
    if total > LONGEST:
        raise MillstreamError(f"{where}expected a duration of at most {LONGEST.days:,} days, got {value!r}.")
    return total


def _read(value: str) -> timedelta | None:
    """The parts of a text added up; None for what is no duration."""
    text = value.strip().lower()
    total, rest = timedelta(), text
    while found := _PART.match(rest):
        unit = _UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s"))
        if unit is None:
            return None
        try:
            total += float(found[1]) * unit
        except OverflowError:
            return timedelta.max
        rest = rest[found.end() :].lstrip(" ,")
    return None if rest or not text else total


def spark_interval(value: timedelta) -> str:
    """Return `value` as an interval in the words that Spark reads, exact to the microsecond."""
    return f"{value // timedelta(microseconds=1)} microseconds"
