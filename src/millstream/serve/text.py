"""Numbers, times and values as people read them. Figures keep their width, so that a column of them does not dance."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

NONE = "–"
MAX_TEXT = 300  # characters of a value that are shown; a message may have megabytes
MAX_NUMBER = 1e18  # of a figure; a larger one is a mistake or an attack, and some sizes cannot be printed
_JOINERS = "\u200c\u200d"  # written languages and emoji need them


def is_number(value: object) -> bool:
    """Return whether a value from a message can be shown as a figure: a finite number of a sensible size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def visible(value: Any) -> Any:
    """Return a text in which characters that are not seen, or turn others around, stand as ⟨U+202E⟩; other values as they are."""
    if type(value) is not str or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in "\n\t" or not _hidden(c) else f"⟨U+{ord(c):04X}⟩" for c in value)


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and character not in _JOINERS


def count(value: float | None) -> str:
    """Return a whole number with thousands separated: 336,776."""
    return f"{value:,.0f}" if value is not None and is_number(value) else NONE


def short(value: float | None) -> str:
    """Return a number in at most four figures: 950, 1.2 k, 34 k, 5.6 M."""
    if value is None or not is_number(value):
        return NONE
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if abs(scaled) < 99.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def rate(value: float | None) -> str:
    """Return events per second: 0, 0.4, 12, 1,240."""
    if value is None or not is_number(value):
        return NONE
    return f"{value:.1f}" if 0 < abs(value) < 9.95 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return bytes: 512 B, 1.4 MB."""
    if value is None or not is_number(value):
        return NONE
    return f"{value:.0f} B" if value < 1000 else short(value) + "B"


def duration(seconds: float | None) -> str:
    """Return a length of time in one or two units: 38 ms, 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None or not is_number(seconds):
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for big, unit, small, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= big:
            rest = int(seconds % big // small)
            return f"{int(seconds // big)} {unit}" + (f" {rest} {part}" if rest else "")
    return NONE


def clock(at: float | None) -> str:
    """Return the time of day, in this machine's zone, of epoch seconds."""
    try:
        return NONE if at is None else datetime.fromtimestamp(at).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError, TypeError):
        return NONE


def moment(value: str | None) -> str:
    """Return an ISO time as date and time in UTC, with seconds only where they are not zero: 2013-01-03 14:00."""
    if not value:
        return NONE
    try:
        time = datetime.fromisoformat(value)
        time = time.astimezone(UTC) if time.tzinfo else time
    except (ValueError, OverflowError):
        return value
    return time.strftime("%Y-%m-%d %H:%M" if not (time.second or time.microsecond) else "%Y-%m-%d %H:%M:%S")


def cell(value: Any, kind: str) -> str:
    """Return a view's value for its table, by the column's kind."""
    if value is None:
        return NONE
    if kind == "integer" and isinstance(value, int):
        return f"{value:,}" if is_number(value) else brief(value)
    if kind == "number" and isinstance(value, int | float):
        return f"{value:,.2f}" if abs(value) < 1e6 else f"{value:,.0f}" if is_number(value) else brief(value)
    if kind == "time":
        return moment(str(value))
    return brief(value)


def brief(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a value as text of bounded length."""
    if isinstance(value, float):
        text = f"{value:,.6g}"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, int) and not is_number(value):
        text = f"about 2^{value.bit_length()}"  # Python prints no more than 4,300 digits
    else:
        text = NONE if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def sentence(value: str) -> str:
    """Return a text that ends like a sentence."""
    stripped = value.strip()
    return stripped if stripped.endswith((".", "!", "?", "…")) else stripped + "."


def points(values: Sequence[float], width: float, height: float, *, slots: int = 60) -> str:
    """Return the points of a sparkline for an SVG polyline: the newest at the right edge, one slot per value, 0 at the bottom."""
    if len(values) < 2:
        return ""
    shown, top = values[-slots:], max(max(values[-slots:]), 1e-9)
    step = width / (slots - 1)
    left = width - step * (len(shown) - 1)
    return " ".join(f"{left + i * step:.1f},{height - v / top * height:.1f}" for i, v in enumerate(shown))
