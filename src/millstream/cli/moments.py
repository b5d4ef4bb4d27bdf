"""Where to start reading, as people write it: earliest, an offset, the last ten, a time, ten minutes ago."""

from __future__ import annotations

import re
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
        return now.astimezone(UTC) - _duration(wanted[:-3].strip(), text)
    if wanted.lower() in ("today", "yesterday"):
        return _midnight(now) - timedelta(days=wanted.lower() == "yesterday")
    try:
        time = datetime.fromisoformat(wanted)
    except ValueError:
        raise MillstreamError(f"expected a place to start from ({EXAMPLES}), got {text!r}.") from None
    return time if time.tzinfo else time.replace(tzinfo=now.tzinfo)


def _duration(wanted: str, text: str) -> timedelta:
    try:
        return duration(wanted)
    except MillstreamError:
        raise MillstreamError(f'expected a time such as "10 minutes ago", got {text!r}.') from None


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)
