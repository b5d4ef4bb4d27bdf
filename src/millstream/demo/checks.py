"""What must be true at the end of a demo: each check compares what was found with what is expected and shows examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, floor, isclose
from typing import Any

from millstream.demo.batch import Expected, FlightKey, Hour

MAX_EXAMPLES = 5  # shown per check; the count says how many there are
ROUNDING = 1e-9  # relative and absolute: a mean is the same sum in another order

Origin = str  # "<topic>-<partition>-<offset>"


@dataclass(frozen=True)
class Check:
    """One thing that was verified: what it says, whether it holds, and where it does not (at most MAX_EXAMPLES)."""

    name: str
    ok: bool
    text: str
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ViewRow:
    """A row of the view delay_by_hour."""

    flights: int
    mean_delay: float
    p90_delay: float


@dataclass(frozen=True)
class Enriched:
    """What matters of a message of departures_enriched. late_half: its departure was sent after the plane had changed."""

    key: FlightKey
    tailnum: str | None
    model: str | None
    airline: str | None
    late_half: bool


def view(
    expected: Mapping[tuple[str, datetime], Hour],
    found: Mapping[tuple[str, datetime], ViewRow],
    *,
    p90_accuracy: float | None = None,
) -> Check:
    """Compare the view with the batch computation: counts exactly, means within rounding, and the 90th percentile.

    p90_accuracy: None when the view computes the percentile exactly (linear interpolation); for an approximation the
    relative rank error it promises (Spark's percentile_approx: 1/accuracy).
    """
    wrong = []
    for origin, hour in sorted(expected.keys() | found.keys()):
        want, have = expected.get((origin, hour)), found.get((origin, hour))
        where = f"{origin} {hour:%Y-%m-%d %H:%M}Z"
        if want is None or have is None:
            wrong.append(f"{where}: {'not expected in' if want is None else 'missing from'} the view")
        elif have.flights != want.flights:
            wrong.append(f"{where}: {have.flights} flights, expected {want.flights}")
        elif not close(have.mean_delay, want.mean_delay):
            wrong.append(f"{where}: mean delay {have.mean_delay}, expected {want.mean_delay}")
        elif not p90_agrees(have.p90_delay, want, p90_accuracy):
            wrong.append(f"{where}: 90th percentile {have.p90_delay}, expected {want.p90_delay}")
    total = sum(h.flights for h in expected.values())
    return _check(
        "view equals the batch computation",
        f"{len(expected):,} rows, {total:,} flights: counts exact, means within rounding,"
        f" 90th percentiles {'exact' if p90_accuracy is None else f'within a rank error of {p90_accuracy:g}'}",
        wrong,
    )


def close(found: float, expected: float) -> bool:
    """Tell whether two numbers differ by no more than rounding."""
    return isclose(found, expected, rel_tol=ROUNDING, abs_tol=ROUNDING)


def p90_agrees(found: float, hour: Hour, accuracy: float | None) -> bool:
    """Tell whether a percentile is right: equal to the interpolated one, or, for an approximation, within its rank error."""
    if close(found, hour.p90_delay) or accuracy is None:
        return close(found, hour.p90_delay)
    last = len(hour.delays) - 1
    low = hour.delays[max(0, floor((0.9 - accuracy) * last))]
    high = hour.delays[min(last, ceil((0.9 + accuracy) * last))]
    return low <= found <= high


def alerts(expected: Counter[FlightKey], found: Counter[FlightKey]) -> Check:
    """Every very late departure has its alert, once."""
    wrong = [
        f"{shown(key)}: {found[key]} alerts, expected {expected[key]}"
        for key in sorted(expected.keys() | found.keys())
        if found[key] != expected[key]
    ]
    return _check("each alert once", f"{sum(expected.values()):,} departures more than two hours late", wrong)


def enriched(expected: Expected, found: Iterable[Enriched], plane: str, new_model: str) -> tuple[list[Check], int]:
    """Every departure is in the enriched topic with its plane and its airline; the changed plane shows its new model later.

    Returns the checks and the number of messages beyond the first of each departure: repeats after a restart are allowed.
    """
    counts: Counter[FlightKey] = Counter()
    wrong, stale = [], []
    before = after = 0
    for message in found:
        counts[message.key] += 1
        if message.key not in expected.departures:
            continue
        tailnum = expected.departures[message.key]
        model = None if tailnum is None else expected.models.get(tailnum)
        allowed = {model, new_model} if tailnum == plane else {model}
        if message.tailnum != tailnum or message.model not in allowed:
            wrong.append(
                f"{shown(message.key)}: aircraft {message.tailnum} with model {message.model!r}, expected {tailnum}"
                f" with {model!r}"
            )
        elif message.airline != expected.airlines.get(message.key[0]):
            wrong.append(
                f"{shown(message.key)}: airline {message.airline!r}, expected {expected.airlines.get(message.key[0])!r}"
            )
        if tailnum == plane:
            if message.late_half and message.model != new_model:
                stale.append(f"{shown(message.key)}: {plane} has model {message.model!r}, expected {new_model!r}")
            after += message.model == new_model
            before += message.model != new_model
    missing = [f"{shown(key)}: missing" for key in sorted(expected.departures.keys() - counts.keys())]
    alien = [f"{shown(key)}: no departure of the input" for key in sorted(counts.keys() - expected.departures.keys())]
    repeated = sum(counts.values()) - len(counts)
    known = sum(tailnum in expected.models for tailnum in expected.departures.values())
    if not after:
        stale.append(f"no departure of {plane} shows {new_model!r}")
    return [
        _check(
            "every departure enriched",
            f"{len(expected.departures):,} departures, {known:,} with a known plane; {repeated:,} repeats",
            missing + alien,
        ),
        _check("planes and airlines right", f"{sum(counts.values()):,} joined rows", wrong),
        _check(
            "a change in the database shows",
            f"{plane} became {new_model!r}: {before:,} departures with the old model, then {after:,} with the new",
            stale,
        ),
    ], repeated


def dead_letters(malformed: set[Origin], found: Mapping[Origin, str]) -> Check:
    """Every malformed event, and nothing else, is a dead letter. malformed: all that were sent. found: the reason by origin."""
    wrong = [f"{origin}: missing" for origin in sorted(malformed - found.keys())]
    wrong += [f"{origin}: not malformed, yet there: {found[origin]}" for origin in sorted(found.keys() - malformed)]
    return _check("malformed events are dead letters", f"{len(malformed):,} sent, {len(found):,} found", wrong)


def dropped(queries: Iterable[str], facts: Mapping[str, Mapping[str, Any]]) -> Check:
    """No query dropped a row as late. facts: what each query last said about itself."""
    wrong, total = [], 0
    for query in queries:
        count = facts.get(query, {}).get("dropped")
        if count is None:
            wrong.append(f"{query}: has not said how many rows it dropped")
        elif count:
            wrong.append(f"{query}: {count:,} rows dropped as late")
        total += count or 0
    return _check("nothing dropped as late", f"{total:,} rows dropped", wrong)


def stored(expected: Mapping[tuple[str, int], int], found: Mapping[tuple[str, int], int]) -> Check:
    """Every message of the input is in its partition."""
    wrong = [
        f"{topic} [{partition}]: {found.get((topic, partition), 0):,} messages, expected {count:,}"
        for (topic, partition), count in sorted(expected.items())
        if found.get((topic, partition), 0) != count
    ]
    return _check("the whole input is stored", f"{sum(expected.values()):,} messages", wrong)


def shown(key: FlightKey) -> str:
    """Return a flight in words."""
    carrier, flight, origin, scheduled = key
    return f"{carrier} {flight} from {origin} at {scheduled:%Y-%m-%d %H:%M}Z"


def _check(name: str, text: str, wrong: list[str]) -> Check:
    if not wrong:
        return Check(name, True, text)
    return Check(name, False, f"{text}; {len(wrong):,} wrong", wrong[:MAX_EXAMPLES])
