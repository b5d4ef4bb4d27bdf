"""`millstream queries`: what each running query says of itself, and how far it is behind."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="everything about one query")]
App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's queries")]
SILENT_S = 3600.0  # a query that says "running" and has said nothing for this long is marked: facts come on change only


@command(example="millstream queries --json", shows=("kafka", "data"))
def queries(at: Common, name: Name = None, app: App = None) -> None:
    """List the queries: state, rate, watermark, rows dropped as late, and lag."""
    from millstream.monitor.lag import all_lags
    from millstream.monitor.status import read

    lags: dict[str, int] = defaultdict(int)
    for lag in all_lags(at.log):
        lags[lag.group] += lag.lag
    found = []
    for (kind, _), facts in sorted(read(at.log).items()):
        if kind == "query" and (app is None or facts.get("app") == app):
            group = f"{facts.get('app')}.{facts.get('name')}"
            found.append({**facts, "lag": lags.get(group)})
    if name is not None:
        found = [facts for facts in found if name in (facts.get("name"), f"{facts.get('app')}.{facts.get('name')}")]
        if not found:
            raise MillstreamError(f"no query {name!r} has ever reported; `millstream queries` lists those that have.")
    if at.json:
        at.out.document(found)
    elif name is not None:
        for facts in found:
            at.out.table(["fact", "value"], [(key, _value(value)) for key, value in facts.items()])
    else:
        at.out.table(
            ["app", "query", "state", "mode", "rows/s", "rows", "watermark", "dropped", "lag", "error"],
            [_row(facts) for facts in found],
            numbers=("rows/s", "rows", "dropped", "lag"),
            empty="no query has reported yet",
        )


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    state = facts.get("state")
    at = facts.get("at")
    if state == "running" and isinstance(at, int | float) and time.time() - at > SILENT_S:
        state = f"{state}, silent for {(time.time() - at) / 3600:.0f} h"
    error = str(facts.get("error") or "").strip().splitlines()
    return (
        facts.get("app"),
        facts.get("name"),
        state,
        facts.get("mode"),
        facts.get("rows_per_second"),
        facts.get("input_rows"),
        facts.get("watermark"),
        facts.get("dropped"),
        facts.get("lag"),
        error[0][:200] if error else None,
    )


def _value(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else repr(value)
