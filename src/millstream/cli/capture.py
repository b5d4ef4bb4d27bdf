"""`millstream capture`: the captured databases and tables, how far each is, why one stands still; giving one up."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millstream.cli.common import Commands, Common, command
from millstream.settings import MillstreamError
from millstream.settings.extras import need

App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's captures")]
Name = Annotated[str, typer.Argument(metavar="SOURCE", help="the database's name under [sources]")]
Execute = Annotated[bool, typer.Option("--execute", help="do it; without, it is only shown")]


@command(example="millstream capture --json", shows=("kafka", "data"), name="list")
def list_captures(at: Common, app: App = None) -> None:
    """List the captured tables: state, rows copied, how far the capture is behind its database, and why a table stands still."""
    found = _captures(at, app)
    if at.json:
        at.out.document(found)
        return
    rows = [row for facts in found for row in _rows(facts)]
    at.out.table(
        ["app", "source", "topic", "state", "rows", "of", "behind s", "behind bytes", "why"],
        rows,
        numbers=("rows", "of", "behind s", "behind bytes"),
        empty="no capture has reported yet",
    )


@command(example="millstream capture show ops", shows=("kafka", "data"), name="show")
def show(at: Common, source: Name, app: App = None) -> None:
    """Show everything that the capture of one database says of itself, the database's other followers too."""
    found = [facts for facts in _captures(at, app) if facts.get("name") == source]
    if not found:
        raise MillstreamError(
            f"no capture of {source!r} has ever reported; `millstream capture` lists those that have."
        )
    if at.json:
        at.out.document(found)
        return
    for facts in found:
        at.out.table(
            ["fact", "value"],
            [(k, v if isinstance(v, str | int | float | None) else repr(v)) for k, v in facts.items() if k != "tables"],
        )


@command(example="millstream capture drop ops --execute", shows=("data",), name="drop")
def drop(at: Common, source: Name, app: App = None, execute: Execute = False) -> None:
    """Give up the capture of a database: remove its replication slot, which keeps the database's log, and its publication.

    The topics stay. Should the application run again, every table is copied again.
    """
    need("postgresql", by="`millstream capture drop`")
    from millstream.capture.postgres import slot
    from millstream.postgresql.connect import connect

    owner = app or at.home.app
    if not owner:
        raise MillstreamError("expected the application's name: give --app, or --data of the folder that it ran in.")
    if not (conninfo := at.settings.sources.get(source, "")):
        raise MillstreamError(
            f"no address of {source!r} is known: set [sources] {source} in millstream.toml, or"
            f" MILLSTREAM_SOURCE_{source.upper()}. The slots of the embedded PostgreSQL go with its data folder."
        )
    name = slot.slot_name(owner, source)
    with connect(conninfo, application="millstream capture drop", autocommit=True) as connection:
        there, tables = slot.find(connection, name), slot.published(connection, name)
        if there is None and tables is None:
            raise MillstreamError(f"{source!r} has neither a slot nor a publication {name}; nothing is to be dropped.")
        if there is not None and there.active_pid is not None:
            raise MillstreamError(
                f"process {there.active_pid} of {source!r} follows the slot {name}: end the application first."
            )
        if execute:
            slot.remove(connection, name)
    facts = {"slot": name if there else None, "publication": name if tables is not None else None, "done": execute}
    if at.json:
        at.out.document(facts)
        return
    would = "was" if execute else "would be"
    for what in ("slot", "publication"):
        if facts[what]:
            at.out.text(f"the {what} {name} of {source} {would} dropped")
    if not execute:
        at.out.text("Nothing was done: give --execute to do it.")


def _captures(at: Common, app: str | None) -> list[dict[str, Any]]:
    from millstream.monitor.status import read

    return [f for (kind, _), f in sorted(read(at.log).items()) if kind == "capture" and app in (None, f.get("app"))]


def _rows(facts: dict[str, Any]) -> list[tuple[object, ...]]:
    behind = (facts.get("lag_seconds"), facts.get("lag_bytes"))
    rows: list[tuple[object, ...]] = []
    for topic, table in sorted((facts.get("tables") or {}).items()):
        said = (table.get("state"), table.get("rows"), table.get("total"))
        rows.append((facts.get("app"), facts.get("name"), topic, *said, *behind, table.get("reason") or None))
    none = (facts.get("app"), facts.get("name"), None, facts.get("state"), None, None, *behind)
    return rows or [(*none, facts.get("problem") or facts.get("lag_problem"))]


capture = Commands(
    "capture",
    "The captured databases: list their tables, show one, give one up.",
    (list_captures, show, drop),
)
