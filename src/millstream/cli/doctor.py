"""`millstream doctor`: what is there, which versions, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

from millstream.run.checks import Finding

_SIGNS = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "broken": "[red]✗[/]"}


def show(console: Console, findings: Iterable[Finding]) -> bool:
    """Print each finding as it comes; return whether nothing is broken."""
    broken = 0
    for finding in findings:
        console.print(
            f"{_SIGNS[finding.verdict]} {finding.name:<16} {escape(finding.found)}", highlight=False, soft_wrap=True
        )
        if finding.advice:
            console.print(f"  [dim]{'→':>16}[/] {escape(finding.advice)}", highlight=False, soft_wrap=True)
        broken += finding.verdict == "broken"
    console.print(f"{broken} of these must be mended." if broken else "Everything needed is there.", highlight=False)
    return not broken
