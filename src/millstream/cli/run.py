"""`millstream run`: an application and all its parts in the foreground, until Ctrl-C."""

from __future__ import annotations

import json
import sys
import webbrowser
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from millstream.run.engine import Status
    from millstream.settings import Settings

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="the application: flights.py, flights.py:app, or a module such as shop.flights"
    ),
]
Listen = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="where the embedded broker listens; any free port by default"),
]
ConsoleAt = Annotated[
    str | None,
    typer.Option("--console", metavar="HOST:PORT", help="where the page is served; any free port by default"),
]
Open = Annotated[bool, typer.Option("--open", help="open the page in a browser when it is ready")]


def listens(broker: str | None, console: str | None) -> dict[str, str]:
    """Return the addresses that were given, by part."""
    return {name: address for name, address in (("broker", broker), ("console", console)) if address}


def supervise(file: str, settings: Settings, listen: dict[str, str], *, open_: bool, as_json: bool) -> None:
    """Run an application until it is asked to end. Raises MillstreamError when a part cannot be kept running.

    as_json: a line per change of a part, and one with the addresses when everything is ready.
    """
    from millstream.app import load
    from millstream.run.progress import Progress
    from millstream.run.supervisor import Supervisor

    app = load(file)
    console = Console(stderr=as_json)
    with Progress(console, silent=as_json) as progress:
        watch = _print_json if as_json else progress.show
        supervisor = Supervisor(app, settings, file=file, listen=listen, watch=watch, say=progress.say)
        with supervisor.signals(), supervisor:
            if supervisor.wait_ready():
                progress.settled()
                addresses = {"kafka": supervisor.kafka.bootstrap, "console": supervisor.console}
                if as_json:
                    print(json.dumps({"ready": addresses}), flush=True)
                else:
                    console.print(f"log:  {addresses['kafka']}", highlight=False, soft_wrap=True)
                    console.print(f"page: {addresses['console']}", highlight=False, soft_wrap=True, markup=False)
                    console.print("Ctrl-C ends everything.", highlight=False, soft_wrap=True)
                if open_:
                    webbrowser.open(supervisor.console)
            supervisor.wait()


def _print_json(status: Status) -> None:
    sys.stdout.write(json.dumps(asdict(status)) + "\n")
    sys.stdout.flush()
