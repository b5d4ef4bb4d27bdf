"""`millstream plan`: the graph of an application, its processes, and what running it would create or change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings.extras import need

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.app import App
    from millstream.app.graph import Graph
    from millstream.run.compare import Comparison

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="the application: flights.py, flights.py:app, or a module such as shop.flights"
    ),
]
_SIGNS = {
    "create": "[green]+[/] {name}  {detail}",
    "unknown": "[dim]?[/] {name}  {detail}",
    "refused": "[red]![/] {name}  {detail}",
    "differs": "[yellow]~[/] {name}  {detail}; it would be left as it is",
}


@command(example="millstream plan flights.py", shows=("kafka", "postgres", "data"))
def plan(at: Common, file: File) -> None:
    """Show what an application is and what running it would create or change. Touches nothing.

    The topics and tables are compared with the log and the database that are given, or that run in the data folder. Ends with 1
    when one that is given does not answer, or `run` would refuse something.
    """
    from rich.console import Console

    from millstream.app import load
    from millstream.app.graph import graph

    app = load(file)
    need("postgresql", by="`millstream plan`")
    from millstream.run.compare import compare

    planned = graph(app, at.settings)
    compared = compare(planned, at.settings)
    if at.json:
        at.out.document(as_values(app, planned, compared))
    else:
        show(Console(), app, planned, compared)
    unseen = any(place.problem and not place.embedded for place in (compared.log, compared.store))
    if unseen or any(change.state == "refused" for change in compared.changes):
        raise typer.Exit(1)


def as_values(app: App, planned: Graph, compared: Comparison) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    from millstream.app.graph import describe

    return {
        **describe(app),
        "processes": [{"name": p.name, "needs": sorted(p.waits_for)} for p in planned.processes],
        "log": asdict(compared.log),
        "store": asdict(compared.store),
        "changes": [asdict(change) for change in compared.changes],
    }


def show(console: Console, app: App, planned: Graph, compared: Comparison) -> None:
    """Print the plan for a human."""
    from rich.markup import escape

    from millstream.app.graph import describe

    console.print(f"[bold]{app.name}[/]")
    for line in _graph(describe(app)):
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    console.print("\n[bold]processes[/], each when what it needs is ready")
    for process in planned.processes:
        needs = f"after {', '.join(sorted(process.waits_for))}" if process.waits_for else "at once"
        console.print(f"  {process.name:<14} [dim]{needs}[/]", highlight=False)
    console.print("\n[bold]changes[/]")
    for line in _changes(compared, planned):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def _graph(description: Mapping[str, Any]) -> Iterable[str]:
    """A line per query and captured table, inputs → query → output, in columns."""
    rows = []
    for table in description["tables"]:
        source = f"{table['database']}: {table['table']}"
        rows.append((source, "change data capture", f"topic {table['name']}"))
    for query in description["queries"]:
        pace = "real time" if query["realtime"] else f"every {query['every_s']:g} s"
        written = [f"table {description['app']}.{name}" for name in query["tables"]]
        written += [f"topic {name}" for name in query["topics"]]
        output = ", ".join(written) or query["to"]
        rows.append((", ".join(query["inputs"]), f"{query['name']} ({query['kind']}, {pace})", output))
    first, second = (max((len(row[n]) for row in rows), default=0) for n in (0, 1))
    yield from (f"{a:<{first}}  →  {b:<{second}}  →  {c}" for a, b, c in rows)
    used = {name for query in description["queries"] for name in query["inputs"]}
    if unused := [t["name"] for t in (*description["inputs"], *description["tables"]) if t["name"] not in used]:
        yield f"read by no query: {', '.join(unused)}"


def _changes(compared: Comparison, planned: Graph) -> Iterable[str]:
    from rich.markup import escape

    places = [("log", compared.log, "topic"), ("store of views", compared.store, "table")]
    for role, place, kind in places:
        changes = [c for c in compared.changes if c.kind == kind]
        if not changes:
            continue
        why = f" [yellow]({escape(place.problem)}: what is missing would be created)[/]" if place.problem else ""
        yield f"{role}: {escape(place.address)}{why}"
        for change in changes:
            if change.state in _SIGNS:
                yield "  " + _SIGNS[change.state].format(
                    name=f"{kind} {change.name}", detail=f"[dim]{escape(change.detail)}[/]"
                )
        kept = sum(c.state == "kept" for c in changes)
        if kept:
            yield f"  [dim]= {kept} {kind}{'s' * (kept != 1)} there as declared[/]"
    for database in planned.databases:
        yield f"embedded PostgreSQL: database {database}, if it is missing"
