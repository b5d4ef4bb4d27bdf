"""How a view is shown: its columns' kinds, the order of its rows, and the chart that suits it. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from millstream.serve.state import Chart, Column, Series

MAX_SERIES = 8  # lines of a chart that an eye can tell apart; the rest is counted and said
MAX_TIMES = 200  # the newest windows are drawn; more would be a black band
MAX_CHARTED = 6  # numeric columns to choose from
NUMERIC = ("integer", "number")

# PostgreSQL's type oids (pg_type.dat); what is not here is shown as text.
_KINDS = {
    20: "integer", 21: "integer", 23: "integer", 26: "integer",
    700: "number", 701: "number", 1700: "number",
    1114: "time", 1184: "time", 1082: "date", 16: "boolean",
}  # fmt: skip


def columns(described: Sequence[tuple[str, int]], key: Sequence[str]) -> list[Column]:
    """Return the columns of a result, from names and type oids. A key `hour` that is no column is a window."""
    names = {name for name, _ in described}
    keys = {k for k in key if k in names} | {f"{k}_{end}" for k in key if k not in names for end in ("start", "end")}
    return [Column(name, _KINDS.get(oid, "text"), name in keys) for name, oid in described]


def window(of: Sequence[Column]) -> tuple[str, str | None] | None:
    """Return the columns of the key that say when a row's window begins and ends, or a time of the key alone, or None."""
    times = [c.name for c in of if c.key and c.kind == "time"]
    for name in times:
        end = name.removesuffix("_start") + "_end"
        if name.endswith("_start") and end in times:
            return name, end
    return (times[0], None) if times else None


def chart(of: Sequence[Column], rows: Sequence[Sequence[Any]]) -> Chart | None:
    """Return the chart of a view with a time in its key: a line per value of the other key columns; None for other views.

    Of the numeric columns, a fraction (a mean, a percentile) is chosen before a count. Of too many series, those with the
    largest sum of the chosen column's magnitudes stay, so that they are the same ones from one second to the next.
    """
    when = window(of)
    numeric = [i for i, c in enumerate(of) if c.kind in NUMERIC and not c.key][:MAX_CHARTED]
    if when is None or not numeric or not rows:
        return None
    place = {c.name: i for i, c in enumerate(of)}
    start, end = place[when[0]], place[when[1]] if when[1] else None
    by = [i for i, c in enumerate(of) if c.key and i not in (start, end)]
    chosen = next((n for n, i in enumerate(numeric) if of[i].kind == "number"), 0)

    points: dict[tuple[Any, ...], dict[float, list[float | None]]] = {}
    for row in rows:
        if isinstance(row[start], datetime):
            series = points.setdefault(tuple(row[i] for i in by), {})
            series[row[start].timestamp()] = [_number(row[i]) for i in numeric]
    times = sorted({t for series in points.values() for t in series})[-MAX_TIMES:]
    points = {k: drawn for k, series in points.items() if (drawn := {t: v for t, v in series.items() if t >= times[0]})}
    step = _length(rows[0][start], rows[0][end]) if end is not None else None
    drawn_times = _with_gaps(times, step)
    weight = {k: sum(abs(v[chosen] or 0.0) for v in series.values()) for k, series in points.items()}
    kept = sorted(sorted(points, key=lambda k: (-weight[k], str(k)))[:MAX_SERIES], key=_natural)
    return Chart(
        time=when[0],
        by=[of[i].name for i in by],
        columns=[of[i].name for i in numeric],
        chosen=chosen,
        times=drawn_times,
        series=[
            Series(
                " · ".join("–" if part is None else str(part) for part in k) or of[numeric[chosen]].name,
                [[points[k].get(t, missing)[n] for t in drawn_times] for n in range(len(numeric))],
            )
            for missing in ([None] * len(numeric),)
            for k in kept
        ],
        step=step,
        left_out=len(points) - len(kept),
    )


def _with_gaps(times: Sequence[float], step: float | None) -> list[float]:
    """Return the times with one more in each gap, at which no series has a value: a line ends there instead of crossing it."""
    found = []
    for time, after in zip(times, [*times[1:], None], strict=True):
        found.append(time)
        if step and after is not None and after - time > 1.5 * step:
            found.append(time + step)
    return found


def plain(value: Any) -> Any:
    """Return a database value as JSON has it: times as ISO text, decimals as numbers, bytes and others as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else str(value)
    if isinstance(value, Decimal):
        return plain(float(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value)


def _number(value: Any) -> float | None:
    number = float(value) if isinstance(value, int | float | Decimal) else None
    return number if number is not None and abs(number) < float("inf") else None  # false for NaN as well


def _length(start: Any, end: Any) -> float | None:
    both = isinstance(start, datetime) and isinstance(end, datetime)
    return (end - start).total_seconds() if both else None


def _natural(key: tuple[Any, ...]) -> tuple[tuple[int, Any], ...]:
    return tuple((0, part) if isinstance(part, int | float) else (1, str(part)) for part in key)
