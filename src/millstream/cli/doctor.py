"""`millstream doctor`: what is there, which versions, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.common import Common, command

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.run.checks import Finding

File = Annotated[
    str | None,
    typer.Argument(metavar="[FILE]", help="an application: then what it needs is looked at; without, everything"),
]
_SIGNS = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "broken": "[red]✗[/]"}


@command(example="millstream doctor --kafka localhost:9092")
def doctor(at: Common, file: File = None) -> None:
    """Say what is there, which versions, what is wrong and what to do. Ends with 1 when something is broken."""
    from rich.console import Console

    from millstream.app import load
    from millstream.app.graph import graph
    from millstream.run.checks import examine

    planned = graph(load(file), at.settings) if file else None
    if at.json:
        findings = list(examine(at.settings, planned))
        at.out.document([asdict(finding) for finding in findings])
        sound = all(finding.verdict != "broken" for finding in findings)
    else:
        sound = show(Console(), examine(at.settings, planned))
    if not sound:
        raise typer.Exit(1)


def show(console: Console, findings: Iterable[Finding]) -> bool:
    """Print each finding as it comes; return whether nothing is broken."""
    from rich.markup import escape

    broken = 0
    for finding in findings:
        sign = _SIGNS[finding.verdict]
        console.print(f"{sign} {finding.name:<16} {escape(finding.found)}", highlight=False, soft_wrap=True)
        if finding.advice:
            console.print(f"  {'':<16} → {escape(finding.advice)}", highlight=False, soft_wrap=True)
        broken += finding.verdict == "broken"
    console.print(
        "Everything needed is there." if not broken else f"{broken} of these must be mended.", highlight=False
    )
    return not broken
