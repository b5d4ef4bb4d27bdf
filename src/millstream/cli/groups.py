"""`millstream groups`: the consumer groups and how far each is behind."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Annotated

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="one group, by partition")]
App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's groups")]


@command(example="millstream groups flights.delay_by_hour", shows=("kafka", "data"))
def groups(at: Common, name: Name = None, app: App = None) -> None:
    """List the consumer groups and queries with their lag: how many events each has still to read."""
    from millstream.cli.membership import belongs
    from millstream.client.lag import all_lags, group_lag
    from millstream.client.lag import groups as known

    if name is not None:
        group = next((g for g in known(at.log) if g.name == name), None)
        lags = group_lag(at.log, name)
        if group is None and not lags:
            raise MillstreamError(f"there is no group {name!r} at {at.log.bootstrap}; `millstream groups` lists them.")
        state = group.state if group else "unknown"
        if at.json:
            at.out.document({"group": name, "state": state, "partitions": [asdict(lag) for lag in lags]})
            return
        at.out.text(f"{name}: {state}, {sum(lag.lag for lag in lags):,} events behind")
        at.out.text("")
        at.out.table(
            ["topic", "partition", "committed", "end", "lag"],
            [(lag.topic, lag.partition, lag.committed, lag.end, lag.lag) for lag in lags],
            numbers=("partition", "committed", "end", "lag"),
            empty="it has committed no offsets",
        )
        return
    found = [g for g in known(at.log) if app is None or belongs(g.name, app)]
    by_group = defaultdict(list)
    for lag in all_lags(at.log):
        by_group[lag.group].append(lag)
    rows = [
        {
            "group": g.name,
            "state": g.state,
            "type": g.type,
            "topics": sorted({lag.topic for lag in by_group[g.name]}),
            "lag": sum(lag.lag for lag in by_group[g.name]),
        }
        for g in found
    ]
    if at.json:
        at.out.document(rows)
        return
    at.out.table(
        ["group", "state", "topics", "lag"],
        [(row["group"], row["state"], ", ".join(row["topics"]), row["lag"]) for row in rows],  # type: ignore[arg-type]
        numbers=("lag",),
        empty="no groups yet: nobody has committed an offset",
    )
