"""`millstream demo`: real flights through everything, and the proof that the results are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings.extras import need

Days = Annotated[int, typer.Option(min=1, max=365, help="how many days of 2013 are replayed")]
Speed = Annotated[str, typer.Option(metavar="X|max", help="seconds of flights per second, or as fast as possible")]
Bad = Annotated[int | None, typer.Option(min=0, help="how many malformed events are sent among them")]
Seed = Annotated[int, typer.Option(help="which ones are malformed, and where they stand")]
Keep = Annotated[bool, typer.Option("--keep", help="leave everything running after the summary, until Ctrl-C")]
Reset = Annotated[bool, typer.Option("--reset", help="with --kafka: delete what an earlier demo left there")]
Open = Annotated[bool, typer.Option("--open", help="open the page in a browser when it is ready")]


@command(example="millstream demo --days 7 --speed max --open")
def demo(
    at: Common,
    days: Days = 7,
    speed: Speed = "max",
    bad: Bad = None,
    seed: Seed = 0,
    keep: Keep = False,
    reset: Reset = False,
    open_: Open = False,
) -> None:
    """Replay real flights out of New York through log, change data capture and Spark, and check the results.

    Ends with a summary, and with 1 when a check fails. An interrupted demo continues where it was. With --json the summary is one
    JSON document, and what happens before is on stderr.
    """
    from rich.console import Console

    need("spark", "postgresql", "demo", by="`millstream demo`")
    from millstream.demo.demo import Demo, run
    from millstream.demo.replay import Options
    from millstream.demo.replay import speed as read_speed
    from millstream.demo.summary import Summary, render
    from millstream.run.progress import Progress

    options = Options(days, read_speed(speed), seed=seed)
    options = options if bad is None else replace(options, bad=bad)
    console = Console(stderr=at.json)

    def finished(summary: Summary) -> None:
        progress.settled()
        if at.json:
            at.out.line(summary.as_dict())
        else:
            console.print(render(summary))

    with Progress(console) as progress:
        summary = run(
            Demo(options, open=open_, keep=keep, reset=reset),
            at.settings,
            say=progress.say,
            watch=progress.show,
            progress=lambda facts: progress.note("replay", _how_far(facts)),
            finished=finished,
        )
    if summary is not None and not summary.ok:
        raise typer.Exit(1)


def _how_far(facts: Mapping[str, Any]) -> str:
    """The replay's status in words: "12,345 of 32,000 events, 2013-01-04 10:15, 4,100 per second"."""
    if facts.get("state") not in ("running", "resuming"):
        return ""
    total = facts.get("total")
    parts = [f"{facts.get('sent') or 0:,}{f' of {total:,}' if total else ''} events"]
    if at := facts.get("event_time"):
        parts.append(str(at)[:16].replace("T", " "))
    return ", ".join([*parts, f"{facts.get('rate') or 0:,.0f} per second"])
