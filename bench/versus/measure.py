"""What was measured, and the table of it: medians of both sides, and how far ours is ahead."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

OURS, THEIRS = "Millstream", "Apache Kafka"
SIDES = (OURS, THEIRS)
TITLE = 44  # characters of a case's title


class Unit(NamedTuple):
    """How a measure is printed: its digits behind the point, and whether more is better (None: neither, no verdict)."""

    digits: int
    more: bool | None


UNITS: Mapping[str, Unit] = {
    "MB/s": Unit(1, True),
    "records/s": Unit(0, None),  # one verdict for both it and MB/s
    "requests/s": Unit(0, True),
    "acknowledged/s": Unit(0, True),
    "CPU ms/MB": Unit(2, False),
    "CPU us/request": Unit(1, False),
    "CPU us/record": Unit(1, False),
    "wall s": Unit(2, None),
    "broker s": Unit(2, None),
    "client s": Unit(2, None),
    "seconds": Unit(2, False),
    "CPU seconds": Unit(2, False),
    "p50 ms": Unit(2, False),
    "p99 ms": Unit(2, False),
    "p99.9 ms": Unit(2, False),
    "RSS MB": Unit(0, False),
    "PSS MB": Unit(0, False),
    "CPU ms/s": Unit(1, False),
    "MB before": Unit(1, None),
    "MB left": Unit(1, None),
}


@dataclass
class Found:
    """All measurements: row, case, measure and side lead to the values of the repeats."""

    values: dict[tuple[str, str, str], dict[str, list[float]]] = field(default_factory=dict)
    failed: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Row, case and side lead to why a run of it failed."""

    def add(self, row: str, case: str, side: str, measures: Mapping[str, float]) -> None:
        """Note what one run of one side gave."""
        for measure, value in measures.items():
            assert measure in UNITS, f"{measure} has no unit"
            self.values.setdefault((row, case, measure), {name: [] for name in SIDES})[side].append(value)

    def save(self, path: Path) -> None:
        """Write every single value as JSON, and what failed."""
        rows: list[dict[str, object]] = [
            {"row": row, "case": case, "measure": measure, **sides}
            for (row, case, measure), sides in self.values.items()
        ]
        rows += [
            {"row": row, "case": case, "side": side, "failed": why} for (row, case, side), why in self.failed.items()
        ]
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(rows, indent=1))
        new.replace(path)

    def table(self) -> str:
        """The table: a block per row, in it a line per side and case, then how far ours is ahead."""
        lines: list[str] = []
        verdicts: list[tuple[float, str]] = []
        for row in dict.fromkeys(row for row, _, _ in (*self.values, *self.failed)):
            measures = list(dict.fromkeys(measure for name, _, measure in self.values if name == row))
            lines.append(
                f"\n{row:{TITLE}}{'':14}" + "".join(f"{head:>{width(head)}}" for head in measures) + "   spread"
            )
            for case in dict.fromkeys(case for name, case, _ in (*self.values, *self.failed) if name == row):
                lines += self._case(row, case, measures, verdicts)
                lines += [
                    f"{'':{TITLE}}{side:14}FAILED: {self.failed[row, case, side].splitlines()[0]:.100}"
                    for side in SIDES
                    if (row, case, side) in self.failed
                ]
        behind = sorted(each for each in verdicts if each[0] < 1)
        lines.append(
            f"\nMillstream is ahead or level in {len(verdicts) - len(behind)} of {len(verdicts)} measures"
            + ("; behind in:" if behind else ".")
        )
        lines += [f"  {ahead:.2f}  {what}" for ahead, what in behind]
        if self.failed:
            lines.append(f"{len(self.failed)} failed:")
            lines += [f"  {row}: {case}, {side}: {why}" for (row, case, side), why in self.failed.items()]
        return "\n".join(lines)

    def _case(self, row: str, case: str, measures: list[str], verdicts: list[tuple[float, str]]) -> list[str]:
        medians = {}
        for measure in measures:
            sides = self.values.get((row, case, measure), {name: [] for name in SIDES})
            medians[measure] = [median(sides[name]) if sides[name] else None for name in SIDES]
        lines = []
        for i, name in enumerate(SIDES):
            cells = "".join(f"{_number(medians[m][i], UNITS[m].digits):>{width(m)}}" for m in measures)
            first = next((m for m in measures if medians[m][i] is not None), None)
            spread = _spread(self.values[row, case, first][name]) if first is not None else ""
            lines.append(f"{'' if i else case:{TITLE}}{name:14}{cells}{spread:>9}".rstrip())
        factors = {m: factor(*medians[m], UNITS[m].more) for m in measures}
        cells = "".join(f"{_number(factors[m], 2):>{width(m)}}" for m in measures)
        lines.append(f"{'':{TITLE}}{'  ahead':14}{cells}".rstrip())
        verdicts += [(found, f"{row}: {case}, {m}") for m, found in factors.items() if found is not None]
        return lines


def factor(ours: float | None, theirs: float | None, more: bool | None) -> float | None:
    """How many times better ours is (below 1: worse); None when nothing can be said."""
    if more is None or ours is None or theirs is None:
        return None
    better, worse = (ours, theirs) if more else (theirs, ours)
    if not worse:
        return math.inf if better else 1.0
    return better / worse


def width(measure: str) -> int:
    """Of a measure's column."""
    return max(11, len(measure) + 2)


def _spread(values: list[float]) -> str:
    """From the smallest to the largest of the repeats, as a share of the median."""
    middle = median(values) if len(values) > 1 else 0.0
    return f"{(max(values) - min(values)) / middle:.0%}" if middle else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
