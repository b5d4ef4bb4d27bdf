"""`millstream run`: an application and all its parts in the foreground, until Ctrl-C."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.common import Common, command

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.run.supervisor import Supervisor

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="the application: flights.py, flights.py:app, or a module such as shop.flights"
    ),
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="where the embedded broker listens; default: any free port")
]
Page = Annotated[
    str | None, typer.Option("--page", metavar="HOST:PORT", help="where the page is served; default: any free port")
]
Fill = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DATABASE=FILE",
        help="SQL that makes and fills the tables of a database of the embedded PostgreSQL; run once in a data folder",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="open the page in a browser when it is ready")]


@command(example="millstream run flights.py --open")
def run(
    at: Common, file: File, listen: Listen = None, page: Page = None, fill: Fill = None, open_: Open = False
) -> None:
    """Run an application: log, database, capture, Spark, alerts and page, in one data folder, until Ctrl-C.

    What has an address (--kafka, --postgres, --spark, sources in millstream.toml) is used where it is; the rest runs here.
    A part that dies is started again. With --json: a line per change of a part, and one with the addresses.
    """
    from rich.console import Console

    from millstream.app import load

    app = load(file)
    from millstream.run.checks import settings_file
    from millstream.run.fill import filling
    from millstream.run.progress import Progress
    from millstream.run.supervisor import Supervisor

    console = Console(stderr=at.json)
    listens = {name: address for name, address in (("broker", listen), ("console", page)) if address}
    with Progress(console, silent=at.json) as progress:
        for finding in settings_file(at.settings):
            progress.say(f"{finding.found}. {finding.advice}")
        watch = (lambda status: at.out.line(asdict(status))) if at.json else progress.show
        supervisor = Supervisor(
            app,
            at.settings,
            file=file,
            extra=filling(app, at.settings, fill or ()),
            listen=listens,
            watch=watch,
            say=progress.say,
        )
        with supervisor.signals(), supervisor:
            if supervisor.wait_ready():
                progress.settled()
                _announce(at, console, supervisor)
                if open_:
                    webbrowser.open(supervisor.console)
            supervisor.wait()


def _announce(at: Common, console: Console, supervisor: Supervisor) -> None:
    """Say where everything is, and which queries Spark refused while the others run."""
    refused = supervisor.facts("spark").get("failed", {}) if "spark" in supervisor.graph.names else {}
    refused = refused if isinstance(refused, dict) else {}
    if at.json:
        at.out.line({"kafka": supervisor.kafka.bootstrap, "console": supervisor.console, "refused": refused})
        return
    for query, reason in refused.items():
        console.print(
            f"query {query} does not run: {reason}", style="red", highlight=False, soft_wrap=True, markup=False
        )
    for name, address in (("log", supervisor.kafka.bootstrap), ("page", supervisor.console)):
        console.print(f"{name + ':':<6}{address}", highlight=False, soft_wrap=True, markup=False)
    console.print("Ctrl-C ends everything.", highlight=False)
