"""`millstream groups`: the consumer groups and how far each is behind; moving and deleting one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Commands, Common, command
from millstream.settings import MillstreamError

if TYPE_CHECKING:
    from millstream.client.replay import Aim, Move
    from millstream.monitor.behind import Behind
    from millstream.monitor.watch import Told

Name = Annotated[str, typer.Argument(metavar="NAME", help="the group")]
App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's groups")]
_PANEL = "Moving a group (reset)"


def _aim(metavar: str | None, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_PANEL)


Topics = Annotated[
    list[str] | None, _aim("TOPIC[:0,1]", "only this topic, or these partitions of it; may be repeated; default: all")
]
ToOffset = Annotated[int | None, _aim("N", "to this offset")]
ToDatetime = Annotated[str | None, _aim("TIME", 'to the first event from 2013-01-01T08:00Z on, or "10 minutes ago"')]
ShiftBy = Annotated[int | None, _aim("N", "by so many events, back with -N")]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="to the beginning", rich_help_panel=_PANEL)]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="to the end", rich_help_panel=_PANEL)]
ByDuration = Annotated[str | None, _aim("DURATION", 'to the first event of the last "2 hours" or PT2H')]
Execute = Annotated[bool, typer.Option("--execute", help="do it; without, it is only shown", rich_help_panel=_PANEL)]
AtNextStart = Annotated[
    bool,
    typer.Option(
        "--at-next-start", help="a query that runs, or never has: move it when it starts next", rich_help_panel=_PANEL
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="really")]


@command(name="list", example="millstream groups --app flights", shows=("kafka", "data"))
def list_(at: Common, app: App = None) -> None:
    """List the groups: how far each is behind, in events, bytes (estimated) and time. This is what `groups` alone does.

    "loss in" is when retention will delete events that the group has not read; a running application watches that.
    """
    _list(at, app)


@command(example="millstream groups show flights.delay_by_hour", shows=("kafka", "data"))
def show(at: Common, name: Name) -> None:
    """Show the partitions of one group, and what it has missed. `groups NAME` does it too."""
    _show(at, name)


@command(
    example="""millstream groups reset flights.delay_by_hour --to-datetime "2 hours ago" --execute""",
    shows=("kafka", "data"),
)
def reset(
    at: Common,
    name: Name,
    topic: Topics = None,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    shift_by: ShiftBy = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    by_duration: ByDuration = None,
    execute: Execute = False,
    at_next_start: AtNextStart = False,
) -> None:
    """Move a group that nobody uses at the moment; without --execute it is only shown.

    The group of a query begins again there with a new Spark checkpoint.
    """
    aim = _chosen(to_offset, to_datetime, shift_by, to_earliest, to_latest, by_duration)
    _reset(at, name, aim, topic or [], execute, at_next_start)


@command(example="millstream groups delete billing --yes", shows=("kafka", "data"))
def delete(at: Common, name: Name, yes: Yes = False) -> None:
    """Forget a group and where it was."""
    _delete(at, name, yes)


groups = Commands(
    "groups",
    "The consumer groups and queries: how far each is behind; moving and deleting one.",
    (list_, show, reset, delete),
)


def _list(at: Common, app: str | None) -> None:
    from millstream.cli.membership import belongs
    from millstream.client.groups import groups as known
    from millstream.monitor.behind import Meter
    from millstream.monitor.watch import read

    found = [g for g in known(at.log) if app is None or belongs(g.name, app)]
    with Meter(at.log) as meter:
        now, measured = meter.measure([g.name for g in found])
    told = read(at.log)
    by_group = defaultdict(list)
    for one in measured:
        by_group[one.group].append(one)
    rows = [
        {
            "group": g.name,
            "state": g.state,
            "type": g.type,
            "topics": sorted({one.topic for one in by_group[g.name]}),
            **_total(by_group[g.name], told, now),
        }
        for g in found
    ]
    if at.json:
        at.out.document(rows)
        return
    at.out.table(
        ["group", "state", "topics", "lag", "bytes", "behind by", "loss in"],
        [(row["group"], row["state"], ", ".join(row["topics"]), row["lag"], *_cells(row)) for row in rows],
        numbers=("lag", "bytes", "behind by", "loss in"),
        empty="no groups yet: nobody has committed an offset",
    )


def _show(at: Common, name: str) -> None:
    from millstream.monitor.behind import Meter
    from millstream.monitor.watch import read

    state = _state(at, name)
    with Meter(at.log) as meter:
        now, measured = meter.measure([name])
    told = read(at.log)
    parts = [{**asdict(one), "loss_in": told.loss_in(one, now)} for one in measured]
    losses = [loss for loss in told.losses if loss["group"] == name]
    warnings = [warning for warning in told.warnings if warning["group"] == name]
    if at.json:
        at.out.document({"group": name, "state": state, "partitions": parts, "warnings": warnings, "losses": losses})
        return
    at.out.text(f"{name}: {state}, {sum(one.lag for one in measured):,} events behind")
    for message in (*warnings, *losses):
        at.out.text(f"  {_moment(message['at'])} {message['text']}")
    at.out.text("")
    at.out.table(
        ["topic", "partition", "committed", "end", "lag", "bytes", "behind by", "loss in"],
        [(p["topic"], p["partition"], p["committed"], p["end"], p["lag"], *_cells(p)) for p in parts],
        numbers=("partition", "committed", "end", "lag", "bytes", "behind by", "loss in"),
        empty="it has committed no offsets",
    )


def _total(measured: Sequence[Behind], told: Told, now: float) -> dict[str, Any]:
    from millstream.monitor.watch import Figure, total

    losses = [loss for one in measured if (loss := told.loss_in(one, now)) is not None]
    return {**total([Figure(one) for one in measured]), "loss_in": min(losses, default=None)}


def _cells(facts: dict[str, Any]) -> tuple[object, ...]:
    seconds = facts["seconds"] if facts["lag"] else None
    return (size(facts["bytes"]) if facts["lag"] else None, span(seconds), span(facts["loss_in"]))


def size(count: int | None) -> str | None:
    """Return bytes as people say them: 950 B, 1.2 kB, 34 MB."""
    if count is None:
        return None
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    unit = units[0]
    return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"


def span(seconds: float | None) -> str | None:
    """Return a time as people say it, in its two largest units: 12 s, 3 min 20 s, 2 h 5 min, 4 d 1 h."""
    if seconds is None:
        return None
    left, found = round(seconds), list[tuple[int, str]]()
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or found or unit == "s":
            found.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in found[:2] if count) or "0 s"


def _state(at: Common, name: str) -> str:
    from millstream.client.groups import committed
    from millstream.client.groups import groups as known

    group = next((g for g in known(at.log) if g.name == name), None)
    if group is None and not committed(at.log, name):
        raise MillstreamError(f"there is no group {name!r} at {at.log.bootstrap}; `millstream groups` lists them.")
    return group.state if group else "unknown"


def _chosen(
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    to_earliest: bool,
    to_latest: bool,
    by_duration: str | None,
) -> Aim:
    from millstream.cli.moments import ago, parse
    from millstream.client.replay import Shift

    now = datetime.now().astimezone()
    given: list[Aim] = []
    if to_offset is not None:
        given.append(to_offset)
    if to_datetime is not None:
        moment = parse(to_datetime, now)
        if not isinstance(moment, datetime):
            raise MillstreamError(f"expected a time for --to-datetime, got {to_datetime!r}.")
        given.append(moment)
    if shift_by is not None:
        given.append(Shift(shift_by))
    if by_duration is not None:
        given.append(ago(by_duration, now))
    given += ["earliest"] if to_earliest else []
    given += ["latest"] if to_latest else []
    if len(given) != 1:
        raise MillstreamError(
            "expected exactly one of --to-offset, --to-datetime, --shift-by, --to-earliest, --to-latest, --by-duration"
            f" to say where the group goes, got {len(given) or 'none'}."
        )
    return given[0]


def _reset(at: Common, name: str, aim: Aim, topics: Sequence[str], execute: bool, at_next_start: bool) -> None:
    from millstream.client.groups import commit
    from millstream.client.replay import active, plan
    from millstream.spark.replay import mark, query_of

    query = query_of(at.settings, name)
    if query is None and at_next_start:
        query = _to_be(name)
    moves = plan(at.log, name, aim, topics or _unplaced(at, name))
    reason = active(at.log, name) or _used(at, name, query, at_next_start)
    if execute and reason:
        raise MillstreamError(f"group {name!r} is not moved, because it is active: {reason}.")
    note = ""
    if query is not None:
        note = (
            f"{name} is a query: when its application starts next it begins there with a new Spark checkpoint, the old one"
            f" is kept in {at.settings.data}/replaced. A view is emptied and filled again from there; a stream writes its"
            " results again; alerts that were given are not repeated."
        )
    if execute:
        if query is not None:
            mark(at.settings.data, *query, _positions(at, name, moves))
        if not (query is not None and _runs_here(at, query[0])):
            commit(at.log, name, {(m.topic, m.partition): m.after for m in moves})
    if at.json:
        facts = {"group": name, "executed": execute, "active": reason, "query": query is not None}
        at.out.document({**facts, "moves": [asdict(m) for m in moves]})
        return
    at.out.table(
        ["topic", "partition", "from", "to", "events", ""],
        [_row(m) for m in moves],
        numbers=("partition", "from", "to", "events"),
    )
    for line in (note, "" if execute else _advice(reason)):
        if line:
            at.out.text("")
            at.out.text(line)


def _unplaced(at: Common, name: str) -> list[str]:
    """The topics of a query that has committed nothing yet, as the data folder knows them; a group that has needs none."""
    from millstream.client.groups import committed

    inputs = at.home.inputs.get(name, [])
    return inputs if inputs and not committed(at.log, name) else []


def _to_be(name: str) -> tuple[str, str]:
    """A query that has not run yet: a copy of another one, say, that is to begin at yesterday's offsets."""
    app, _, query = name.partition(".")
    if not app or not query.isidentifier():
        raise MillstreamError(
            f"--at-next-start is for queries, whose groups are called APPLICATION.QUERY, not {name!r}."
        )
    return app, query


def _row(move: Move) -> tuple[object, ...]:
    change = None if move.before is None else f"{move.after - move.before:+,}"
    return (move.topic, move.partition, move.before, move.after, change, "the log's end" if move.cut else None)


def _advice(reason: str | None) -> str:
    if reason:
        return f"Nothing was changed, and --execute would be refused: {reason}."
    return "Nothing was changed; add --execute to do it."


def _positions(at: Common, name: str, moves: Sequence[Move]) -> dict[tuple[str, int], int]:
    """Where the query goes in every partition: those that are not moved stay."""
    from millstream.client.groups import committed

    stay = {place: tp.offset for place, tp in committed(at.log, name).items()}
    return {**stay, **{(m.topic, m.partition): m.after for m in moves}}


def _used(at: Common, name: str, query: tuple[str, str] | None, at_next_start: bool) -> str | None:
    """Return why a group without members is in use all the same: Millstream's own parts commit without joining."""
    from millstream.monitor.status import read

    app = name.partition(".")[0]
    if _runs_here(at, app):
        if query is not None:
            if at_next_start:
                return None
            return (
                f"the application {app} runs in {at.settings.data}, and its query would go on from its own checkpoint."
                " Add --at-next-start, and start the application again when it suits; or end it first"
            )
        return f"the application {app} runs in {at.settings.data}; end it first"
    if query is not None or (at.settings.data / "checkpoints" / app).is_dir():
        return None  # the application is at home here, and does not run
    facts = read(at.log, app)
    elsewhere = f"not in {at.settings.data}; give --data with the data folder of its application"
    if ("query", name.partition(".")[2]) in facts:
        return f"it is the position of the query {name}, whose checkpoint is {elsewhere}"
    delivers = any(kind == "deliver" and said.get("state") == "running" for (kind, _), said in facts.items())
    if name.endswith(".deliver") and delivers:
        return f"it is the position of a delivery of {app}, which runs, {elsewhere}"
    return None


def _runs_here(at: Common, app: str) -> bool:
    from millstream.run.runfile import current

    running = current(at.settings.data)
    return running is not None and running.app == app


def _delete(at: Common, name: str, yes: bool) -> None:
    from millstream.client.groups import committed, delete_group
    from millstream.client.replay import active

    _state(at, name)
    if reason := active(at.log, name):
        raise MillstreamError(f"group {name!r} is not deleted, because it is active: {reason}.")
    if not yes:
        places = len(committed(at.log, name))
        raise MillstreamError(
            f"this would make the log forget the group {name} and where it was in {places} partitions;"
            " add --yes if that is meant."
        )
    delete_group(at.log, name)
    if at.json:
        at.out.document({"deleted": name})
    else:
        at.out.text(f"deleted {name}")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
