"""`millstream views`: the tables that queries keep up to date, and their rows; rebuilding and dropping one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError, Settings
from millstream.settings.extras import need

if TYPE_CHECKING:
    from millstream.stores.store import Owner, Stored

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME | rebuild NAME | drop NAME]",
        help="print the rows of a view, VIEW or APP.VIEW, or give it to the next run, or remove it",
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="how many rows, newest windows first")]
App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's views")]
Execute = Annotated[bool, typer.Option("--execute", help="rebuild, drop: do it; without, it is only shown")]

LIMIT = 20
DECIMALS = 6  # digits behind the point that a person reads; --json has them all


@command(example="millstream views delay_by_hour --limit 50", shows=("postgres", "data"))
def views(at: Common, words: Words = None, limit: Limit = LIMIT, app: App = None, execute: Execute = False) -> None:
    """List the views with their rows and who keeps each, or print the rows of one.

    A view belongs to the run that fills it, and no other run empties or overwrites it. `views rebuild NAME` gives it to the next
    run, which empties it and fills it from the beginning; `views drop NAME` removes it. Both show what they would do, and do
    it with --execute, when the application has ended.
    """
    need("postgresql", by="`millstream views`")
    match words or []:
        case []:
            _list(at, app)
        case ["rebuild" | "drop" as word, name]:
            _change(at, word, name, app, execute)
        case [name] if name not in ("rebuild", "drop"):
            _show(at, name, limit, app)
        case other:
            raise MillstreamError(f"expected a view's name, `rebuild NAME` or `drop NAME`, got {' '.join(other)!r}.")


def _list(at: Common, app: str | None) -> None:
    from millstream.stores.postgresql import tables

    found = tables(_settings(at), app, count=True)
    if at.json:
        at.out.document(
            [
                {"app": one.app, "view": one.name, "rows": one.rows, "written": one.owner and one.owner.at}
                | {"owner": asdict(one.owner) if one.owner else None}
                for one in found
            ]
        )
        return
    at.out.table(
        ["app", "view", "rows", "last written", "kept in"],
        [(one.app, one.name, one.rows, one.owner and one.owner.at, _keeper(one.owner)) for one in found],
        numbers=("rows",),
        empty="no views yet",
    )


def _keeper(owner: Owner | None) -> str:
    if owner is None:
        return "never written"
    return f"{owner.place or ''}{' (to be rebuilt)' if owner.rebuild else ''}"


def _show(at: Common, name: str, limit: int, app: str | None) -> None:
    from millstream.stores.postgresql import read, tables

    settings = _settings(at)
    view = _pick(tables(settings, app), name)
    found = read(settings, view.app, view.name, limit=limit)
    rows = found.rows()
    if at.json:
        at.out.document(rows)
        return
    numbers = [c for c in found.columns if any(_is_number(row[c]) for row in rows)]
    at.out.table(
        found.columns, [[_cell(v) for v in row.values()] for row in rows], numbers=numbers, empty="no rows yet"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cell(value: object) -> object:
    """A number as data: without separators, which no id, year or epoch has, and without digits that say nothing."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        rounded = round(value, DECIMALS)
        if value != value or abs(value) in (float("inf"), Decimal("Infinity")):
            return str(value)
        if value and not rounded:
            return f"{value:.3g}"
        text = f"{rounded:.{DECIMALS}f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text
    return value


def _change(at: Common, word: str, name: str, app: str | None, execute: bool) -> None:
    from millstream.stores import folder, postgresql

    data = at.settings.data
    with _store(at, alone=execute) as settings:
        view = _named(settings, name, app)
        query = view.owner.query if view.owner else view.name
        checkpoint = folder.checkpoint(at.settings, view.app, query)
        plan = {
            "view": f"{view.app}.{view.name}",
            "owner": view.owner.describe() if view.owner else None,
            "rows": view.rows,
            "checkpoint": str(checkpoint) if checkpoint.is_dir() else None,
            "done": execute,
        }
        if execute:
            # The database first: a run between the two finds a view that is not to be continued, and touches nothing.
            if word == "drop":
                if view.rows is not None or view.owner is not None:
                    postgresql.drop(settings, view.app, view.name)
            elif view.owner is not None:
                postgresql.rebuild(settings, view.app, view.name)
            plan["put_aside"] = str(folder.put_aside(at.settings, view.app, query) or "") or None
    if at.json:
        at.out.document(plan)
        return
    would = "" if execute else "would be "
    at.out.text(f"{plan['view']}: {view.rows or 0} rows, {plan['owner'] or 'never written by a query'}")
    if word == "drop":
        at.out.text(f"table and owner: {would}removed")
    else:
        at.out.text(f"the next run {'empties' if execute else 'would empty'} it and fills it from the beginning")
    if plan["checkpoint"]:
        to = plan.get("put_aside") or data / "replaced" / view.app
        at.out.text(f"checkpoint {plan['checkpoint']}: {would}put aside in {to}")
    if not execute:
        at.out.text("Nothing was done: give --execute to do it.")


def _named(settings: Settings, name: str, app: str | None) -> Stored:
    """The view with its rows counted; one whose table is gone is known by its owner, or by a checkpoint in the data folder."""
    from millstream.stores import folder
    from millstream.stores.postgresql import tables
    from millstream.stores.store import Stored

    schema, _, view = name.rpartition(".")
    found = tables(settings, schema or app, count=True)
    there = any(one.name == view for one in found)
    if schema and not there and folder.checkpoint(settings, schema, view).is_dir():
        return Stored(schema, view)
    return _pick(found, name)


@contextmanager
def _store(at: Common, *, alone: bool) -> Iterator[Settings]:
    """Settings with the address of the store; the embedded one is started when nothing runs in the data folder.

    alone: make sure that nothing starts there meanwhile. Raises MillstreamError when something runs.
    """
    from millstream.app.graph import STORE
    from millstream.postgresql.server import Server
    from millstream.run.lock import Lock, held

    data = at.settings.data
    with ExitStack() as stack:
        if not alone and (at.settings.postgres or held(data)):
            yield _settings(at)
            return
        if data.is_dir():
            stack.callback(Lock(data).release)
        if at.settings.postgres:
            yield at.settings
            return
        if not (data / "postgres").is_dir():
            yield _settings(at)  # says what is missing
            return
        server = stack.enter_context(Server(data / "postgres"))
        yield replace(at.settings, postgres=server.database(STORE))


def _settings(at: Common) -> Settings:
    """The settings with the address of the store."""
    return replace(at.settings, postgres=at.postgres)


def _pick(found: Sequence[Stored], name: str) -> Stored:
    matching = [view for view in found if name in (view.name, f"{view.app}.{view.name}")]
    names = ", ".join(f"{view.app}.{view.name}" for view in matching or found)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise MillstreamError(f"several applications have a view {name!r}: name one of {names}.")
    raise MillstreamError(f"there is no view {name!r}; there are {names or 'none yet'}.")
