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
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def duration(value: str | timedelta) -> timedelta:
    """Return `value` as a timedelta: "2 hours", "1 day 12 hours", "500 ms", or a timedelta itself.

    Raises MillstreamError when it is not positive or cannot be read.
    """
    if isinstance(value, timedelta):
        total = value
    else:
        text = value.strip().lower()
        total, rest = timedelta(), text
        while found := _PART.match(rest):
            unit = _UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s"))
            if unit is None:
                break
            total += float(found[1]) * unit
            rest = rest[found.end() :].lstrip(" ,")
        if rest or not text:
            raise MillstreamError(f'expected a duration such as "2 hours" or "90 seconds", got {value!r}.')
    if total <= timedelta():
        raise MillstreamError(f'expected a positive duration such as "2 hours", got {value!r}.')
    return total


def spark_interval(value: timedelta) -> str:
    """Return `value` as an interval in the words that Spark reads, exact to the microsecond."""
    return f"{value // timedelta(microseconds=1)} microseconds"
