"""The lines that the proof prints: one per part, the failures with their reasons, and the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tests.proof.part import Done

Expected = Mapping[str, Mapping[str, str]]  # part -> pattern of test names -> reason


def reason(expected: Expected, part: str, test: str) -> str | None:
    """Why a test of a part is expected to fail, or None."""
    return next((why for pattern, why in expected.get(part, {}).items() if fnmatchcase(test, pattern)), None)


def line(done: Done, expected: Expected) -> str:
    """The part's line: what came of it, and how long it took."""
    name, seconds = f"{done.part.kind} {done.part.name}", f"{done.seconds:6.1f} s"
    if done.skipped:
        return f"skip  {name:28} {seconds}  {done.skipped}"
    results = done.results
    known = [test for test in results.failed if reason(expected, done.part.name, test)]
    wrong = len(results.failed) - len(known)
    counts = [f"{len(results.passed)} passed"]
    counts += [f"{wrong} FAILED"] if wrong else []
    counts += [f"{len(known)} failed as expected"] if known else []
    counts += [f"{len(results.skipped)} skipped"] if results.skipped else []
    text = ", ".join(counts) + (f"; {results.note}" if results.note else "")
    return f"{'FAIL' if wrong else 'ok':4}  {name:28} {seconds}  {text}"


def failures(done: Done, expected: Expected) -> list[str]:
    """A line per failure: those that nothing explains with what they said, the others with the reason listed."""
    lines = []
    for test, why in done.results.failed.items():
        known = reason(expected, done.part.name, test)
        lines.append(f"      {test}: " + (f"expected: {known}" if known else shortened(why)))
    return lines


def shortened(text: str, most: int = 600) -> str:
    """A failure's own words on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[:most] + " …"


def totals(all_done: Sequence[Done], expected: Expected) -> tuple[str, bool]:
    """The last line, and whether the proof holds: no failure that is not listed, and something passed."""
    passed = sum(len(done.results.passed) for done in all_done)
    failed = sum(
        reason(expected, done.part.name, test) is None for done in all_done for test in done.results.failed
    )  # fmt: skip
    return f"{passed} passed, {failed} failed", failed == 0 and passed > 0
