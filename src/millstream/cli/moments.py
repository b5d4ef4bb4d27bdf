"""Where to start reading, as people write it: earliest, an offset, the last ten, a time, ten minutes ago."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from millstream.event.duration import duration
from millstream.settings import MillstreamError

EXAMPLES = 'earliest, latest, 1200, -10, 2013-01-01T08:00Z, "10 minutes ago"'


def parse(text: str, now: datetime) -> str | int | datetime:
    """Return what `--from` means: "earliest", "latest", an offset (negative: that many before the end), or a time with a zone.

    A time without a zone is in the zone of `now`, which must have one. Raises MillstreamError.
    """
    wanted = text.strip()
    if wanted.lower() in ("earliest", "beginning", "start"):
        return "earliest"
    if wanted.lower() in ("latest", "end", "now"):
        return "latest"
    if re.fullmatch(r"-?[0-9]{1,18}", wanted):
        return int(wanted)
    if wanted.lower().endswith("ago"):
        return _before(now.astimezone(UTC), lambda: _duration(wanted[:-3].strip(), text), text)
    if wanted.lower() in ("today", "yesterday"):
        return _midnight(now) - timedelta(days=wanted.lower() == "yesterday")
    try:
        time = datetime.fromisoformat(wanted)
    except ValueError:
        raise MillstreamError(f"expected a place to start from ({EXAMPLES}), got {text!r}.") from None
    return time if time.tzinfo else time.replace(tzinfo=now.tzinfo)


# ISO 8601, as Kafka's tool takes it: P1DT2H30M, PT15M.
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def ago(text: str, now: datetime) -> datetime:
    """Return the moment a duration before `now`: "2 hours", or PT2H as ISO 8601 has it. Raises MillstreamError."""
    if (found := _ISO.fullmatch(text.strip())) and any(found.groups()):
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return _before(now, lambda: timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds), text)
    return _before(now, lambda: _duration(text.strip(), text), text)


def _before(now: datetime, length: Callable[[], timedelta], text: str) -> datetime:
    try:
        return now - length()
    except OverflowError:
        raise MillstreamError(f"expected a time since the year 1, got {text!r}.") from None


def _duration(wanted: str, text: str) -> timedelta:
    try:
        return duration(wanted)
    except MillstreamError:
        raise MillstreamError(f'expected a duration such as "10 minutes", got {text!r}.') from None


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
