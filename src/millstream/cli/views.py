"""`millstream views`: the tables that queries keep up to date, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Common, command
from millstream.settings import MillstreamError
from millstream.settings.extras import need

if TYPE_CHECKING:
    from millstream.postgresql.connect import Connection

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="print the rows of this view: VIEW or APP.VIEW")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="how many rows, newest keys first")]
App = Annotated[str | None, typer.Option(metavar="NAME", help="only this application's views")]

STATEMENT_S = 30.0  # how long the database may take: counting a huge view must not run for ever
LIMIT = 20


@command(example="millstream views delay_by_hour --limit 50", shows=("postgres", "data"))
def views(at: Common, name: Name = None, limit: Limit = LIMIT, app: App = None) -> None:
    """List the views with their rows, or print the rows of one."""
    need("postgresql", by="`millstream views`")
    from psycopg import Error

    from millstream.postgresql.connect import connect

    with connect(
        at.postgres, autocommit=True, statement_timeout_s=STATEMENT_S, options="-c timezone=UTC"
    ) as connection:
        try:
            found = [view for view in _known(connection) if app is None or view[0] == app]
            if name is None:
                _list(at, connection, found)
            else:
                _show(at, connection, _pick(found, name), limit)
        except Error as error:
            raise MillstreamError(f"the views cannot be read: {str(error).strip()}") from error


# A view is a table in the schema of an application that has a checkpoint; its columns' comments and types are PostgreSQL's.
_KNOWN = """
select c.app, t.table_name::text, max(p.at)
from (select distinct app from millstream.checkpoints) c
join information_schema.tables t on t.table_schema = c.app and t.table_type = 'BASE TABLE'
left join millstream.checkpoints p on p.app = c.app and p.query = t.table_name
group by 1, 2 order by 1, 2
"""

# The key is a unique constraint, or a primary key in a table that somebody else made.
_KEY = """
select a.attname::text
from (
    select i.indrelid, i.indkey from pg_index i join pg_class c on c.oid = i.indrelid
    join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s and i.indisunique and i.indpred is null
    order by i.indisprimary desc, i.indexrelid limit 1
) i, unnest(i.indkey) with ordinality k(number, place)
join pg_attribute a on a.attnum = k.number
where a.attrelid = i.indrelid order by k.place
"""


def _known(connection: Connection) -> list[tuple[str, str, Any]]:
    if connection.execute("select to_regclass('millstream.checkpoints')").fetchone() == (None,):
        return []
    return [(app, view, at) for app, view, at in connection.execute(_KNOWN)]


def _list(at: Common, connection: Connection, found: Sequence[tuple[str, str, Any]]) -> None:
    from psycopg import sql

    rows = []
    for app, view, written in found:
        query = sql.SQL("select count(*) from {}").format(sql.Identifier(app, view))
        [(count,)] = connection.execute(query).fetchall()
        rows.append({"app": app, "view": view, "rows": count, "written": written})
    if at.json:
        at.out.document(rows)
        return
    at.out.table(
        ["app", "view", "rows", "last written"],
        [tuple(row.values()) for row in rows],
        numbers=("rows",),
        empty="no views yet",
    )


def _show(at: Common, connection: Connection, view: tuple[str, str, Any], limit: int) -> None:
    from psycopg import sql

    table = sql.Identifier(view[0], view[1])
    key = [column for (column,) in connection.execute(_KEY, [view[0], view[1]])]
    order = sql.SQL(", ").join(sql.SQL("{} desc").format(sql.Identifier(column)) for column in key)
    query = sql.SQL("select * from {}{} limit {}").format(
        table, sql.SQL(" order by ") + order if key else sql.SQL(""), sql.Literal(limit)
    )
    cursor = connection.execute(query)
    columns = [column.name for column in cursor.description or ()]
    rows = cursor.fetchall()
    if at.json:
        at.out.document([dict(zip(columns, row, strict=True)) for row in rows])
        return
    numbers = [c for n, c in enumerate(columns) if rows and isinstance(rows[0][n], int | float)]
    at.out.table(columns, rows, numbers=numbers, empty="no rows yet")


def _pick(found: Sequence[tuple[str, str, Any]], name: str) -> tuple[str, str, Any]:
    matching = [view for view in found if name in (view[1], f"{view[0]}.{view[1]}")]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise MillstreamError(
            f"several applications have a view {name!r}: name one of {', '.join(f'{a}.{v}' for a, v, _ in matching)}."
        )
    raise MillstreamError(
        f"there is no view {name!r}; there are {', '.join(f'{a}.{v}' for a, v, _ in found) or 'none yet'}."
    )
