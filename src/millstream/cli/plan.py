"""`millstream plan`: the graph of an application, what running it would create or change, and what `run` would refuse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError
from millstream.settings.extras import need

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.app import App
    from millstream.app.graph import Graph
    from millstream.run.compare import Comparison
    from millstream.spark.check import Finding

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="the application: flights.py, flights.py:app, or a module such as shop.flights"
    ),
]
Queries = Annotated[
    bool,
    typer.Option(
        "--queries/--no-queries", help="analyse the queries on Spark, which takes some 10 seconds, or leave that out"
    ),
]
_SIGNS = {
    "create": "[green]+[/] {name}  {detail}",
    "unknown": "[dim]?[/] {name}  {detail}",
    "refused": "[red]![/] {name}  {detail}",
    "differs": "[yellow]~[/] {name}  {detail}; it would be left as it is",
}


_STATES = {
    "none": "keeps no state",
    "new": "new: begins with empty state ({keeps})",
    "fits": "fits: continues with its state ({keeps})",
    "refused": "refused",
    "unknown": "not analysed",
    "would mix": "would mix: it would not start",
    "rebuild": "rebuild: it would not start",
}


@dataclass(frozen=True)
class Analysis:
    """What is known of the queries. problem: why none was analysed; "" when they were.   wanted: whether they were to be."""

    findings: tuple[Finding, ...] = ()
    problem: str = ""
    wanted: bool = True

    @property
    def sound(self) -> bool:
        """Whether every query would start, as far as one wanted to know."""
        return not self.problem and all(finding.sound for finding in self.findings)


@command(example="millstream plan flights.py", shows=("kafka", "postgres", "data"))
def plan(at: Common, file: File, queries: Queries = True) -> None:
    """Show what an application is, what running it would create or change, and what `run` would refuse.

    Topics, tables and captured tables are compared with the log and the databases that are given, or that are in the data folder;
    each query is analysed on Spark, and its state compared with what its function needs. Nothing is changed. Ends with 1 when
    `run` would refuse something, or something could not be looked at.
    """
    from rich.console import Console

    from millstream.app import load
    from millstream.app.graph import graph

    app = load(file)
    planned = graph(app, at.settings)
    if "postgresql" in planned.extras:
        need("postgresql", by=f"the application {app.name!r}")
    from millstream.run.compare import compare

    console = Console(stderr=at.json)
    compared = compare(planned, at.settings)
    if not at.json:
        show(console, app, planned, compared)
    analysis = _analyse(at, file, app, compared, console) if queries and app.queries else Analysis(wanted=queries)
    if at.json:
        at.out.document(as_values(app, planned, compared, analysis))
    elif app.queries:
        show_queries(console, analysis)
    if not (compared.sound and analysis.sound):
        raise typer.Exit(1)


def _analyse(at: Common, file: str, app: App, compared: Comparison, console: Console) -> Analysis:
    if console.is_terminal:
        console.print("\n[dim]analysing queries on Spark; --no-queries leaves it out[/]", highlight=False)
    try:
        need("spark", by=f"the application {app.name!r}")
        from millstream.spark.check import checked

        return Analysis(tuple(checked(file, at.settings, compared.columns)))
    except MillstreamError as error:
        return Analysis(problem=str(error))


def as_values(app: App, planned: Graph, compared: Comparison, analysis: Analysis) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    from millstream.app.graph import describe

    return {
        **describe(app),
        "processes": [{"name": p.name, "needs": sorted(p.waits_for)} for p in planned.processes],
        "log": asdict(compared.log),
        "store": asdict(compared.store),
        "sources": {name: asdict(place) for name, place in compared.sources.items()},
        "changes": [asdict(change) for change in compared.changes],
        "analysis": asdict(analysis),
    }


def show(console: Console, app: App, planned: Graph, compared: Comparison) -> None:
    """Print the graph, the processes and the changes for a human."""
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


def show_queries(console: Console, analysis: Analysis) -> None:
    """Print what is known of each query for a human."""
    from rich.markup import escape

    console.print("\n[bold]queries[/]")
    if not analysis.wanted or analysis.problem:
        why = f"not analysed: {analysis.problem}" if analysis.problem else "not analysed (--no-queries)"
        console.print(f"  [{'red' if analysis.problem else 'dim'}]{escape(why)}[/]", highlight=False, soft_wrap=True)
        return
    for finding in analysis.findings:
        said = _STATES[finding.state].format(keeps=", ".join(finding.keeps))
        detail = f"; {finding.detail}" if finding.detail else ""
        sign = "[green]=[/]" if finding.sound else "[red]![/]"
        console.print(f"  {sign} {finding.query}  [dim]{escape(said + detail)}[/]", highlight=False, soft_wrap=True)


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

    places = [("log", compared.log, "topic", ""), ("store of views", compared.store, "table", "")]
    places += [(f"source {name}", place, "captured table", f"{name}: ") for name, place in compared.sources.items()]
    for role, place, kind, prefix in places:
        changes = [c for c in compared.changes if c.kind == kind and c.name.startswith(prefix)]
        if not changes:
            continue
        then = "" if kind == "captured table" else ": what is missing would be created"
        why = f" [yellow]({escape(place.problem)}{then})[/]" if place.problem else ""
        yield f"{role}: {escape(place.address)}{why}"
        for change in changes:
            if change.state in _SIGNS:
                yield "  " + _SIGNS[change.state].format(
                    name=f"{kind} {change.name.removeprefix(prefix)}", detail=f"[dim]{escape(change.detail)}[/]"
                )
        if place.advice:
            yield f"  [yellow]→[/] {escape(place.advice)}"
        kept = sum(c.state == "kept" for c in changes)
        if kept:
            yield f"  [dim]= {kept} {kind}{'s' * (kept != 1)} there{' as declared' if kind != 'captured table' else ''}[/]"
    for database in planned.databases:
        yield f"embedded PostgreSQL: database {database}, if it is missing"
