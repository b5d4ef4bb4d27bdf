"""The owners of views in PostgreSQL: the table `millstream.checkpoints`, one row per view that was ever written.

Its columns: app and view (the key); query, query_id and batch_id, the last batch written, and at, when; place and since, from
where it is kept and since when; backend and backend_start, the session that wrote last, which tells whether the owner is
connected without any clock of ours; rebuild, whether it is given to the next run.

A table of an earlier version (app, query, query_id, batch_id, at) is brought up in place: its views, which bore their queries'
names, stay with the checkpoint that is noted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from psycopg import sql

from millstream.postgresql.connect import Connection
from millstream.settings import MillstreamError
from millstream.stores.store import Claim, Owner

_TABLE = """
CREATE TABLE IF NOT EXISTS millstream.checkpoints (
    app text, view text, query text NOT NULL, query_id uuid NOT NULL, batch_id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), place text, since timestamptz, backend integer, backend_start timestamptz,
    rebuild boolean NOT NULL DEFAULT false, PRIMARY KEY (app, view))
"""
_COLUMNS = "view text, place text, since timestamptz, backend integer, backend_start timestamptz"

# Whole rows as JSON: a table of an earlier version, which only lacks columns, is read as well.
_OWNERS = """
SELECT c.*, EXISTS (
    SELECT FROM pg_stat_activity s WHERE s.pid = (c.facts->>'backend')::integer AND s.pid <> pg_backend_pid()
    AND coalesce(s.backend_start = (c.facts->>'backend_start')::timestamptz, true)
) FROM (SELECT to_jsonb(p) AS facts FROM millstream.checkpoints p) AS c
WHERE (%(app)s::text IS NULL OR c.facts->>'app' = %(app)s)
  AND (%(view)s::text IS NULL OR coalesce(c.facts->>'view', c.facts->>'query') = %(view)s)
"""


def ensure_table(connection: Connection) -> None:
    """Create the table, or bring one of an earlier version up to this one."""
    with connection.transaction():
        lock(connection, "millstream.checkpoints")
        connection.execute("CREATE SCHEMA IF NOT EXISTS millstream")
        connection.execute(_TABLE)
        columns = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'millstream.checkpoints'::regclass AND attnum > 0"
        ).fetchall()
        if ("rebuild",) in columns:
            return
        added = ", ".join(f"ADD COLUMN {column.strip()}" for column in _COLUMNS.split(","))
        added += ", ADD COLUMN rebuild boolean NOT NULL DEFAULT false"
        connection.execute(f"ALTER TABLE millstream.checkpoints {added}")  # type: ignore[arg-type]
        connection.execute("UPDATE millstream.checkpoints SET view = query")
        connection.execute(
            "ALTER TABLE millstream.checkpoints DROP CONSTRAINT checkpoints_pkey, ADD PRIMARY KEY (app, view)"
        )


def is_there(connection: Connection) -> bool:
    """Return whether the table exists: whether any view was ever kept in this database."""
    return connection.execute("SELECT to_regclass('millstream.checkpoints') IS NOT NULL").fetchone() == (True,)


def owners(connection: Connection, app: str | None = None, view: str | None = None) -> list[Owner]:
    """Return the owners of an application's views, or of one view, or of all."""
    if not is_there(connection):
        return []
    return [_owner(facts, active) for facts, active in connection.execute(_OWNERS, {"app": app, "view": view})]


def owner(connection: Connection, app: str, view: str) -> Owner | None:
    """Return who keeps a view, None when no batch of it was ever written."""
    found = owners(connection, app, view)
    return found[0] if found else None


def note(connection: Connection, view: str, claim: Claim, query_id: str, batch_id: int, *, begins: bool) -> None:
    """Note a batch in the transaction that writes it. begins: the claim keeps the view from now on."""
    connection.execute(
        "INSERT INTO millstream.checkpoints AS c"
        " (app, view, query, query_id, batch_id, at, place, since, backend, backend_start)"
        " VALUES (%(app)s, %(view)s, %(query)s, %(id)s, %(batch)s, now(), %(place)s, now(), pg_backend_pid(),"
        " (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()))"
        " ON CONFLICT (app, view) DO UPDATE SET (query, query_id, batch_id, at, place, backend, backend_start, rebuild) ="
        " (EXCLUDED.query, EXCLUDED.query_id, EXCLUDED.batch_id, EXCLUDED.at, EXCLUDED.place, EXCLUDED.backend,"
        " EXCLUDED.backend_start, false),"
        " since = CASE WHEN %(begins)s OR c.since IS NULL THEN EXCLUDED.since ELSE c.since END",
        {
            "app": claim.app,
            "view": view,
            "query": claim.query,
            "id": query_id,
            "batch": batch_id,
            "place": claim.place,
            "begins": begins,
        },
    )


def give(connection: Connection, app: str, view: str) -> None:
    """Give a view to the next run. Raises MillstreamError while its owner is connected, or when nobody keeps it."""
    with connection.transaction():
        ensure_table(connection)
        _ended(connection, app, view)
        done = connection.execute(
            "UPDATE millstream.checkpoints SET rebuild = true WHERE app = %s AND view = %s", [app, view]
        )
        if not done.rowcount:
            raise MillstreamError(f"no query has ever written the view {app}.{view}: the next run begins it anyway.")


def drop(connection: Connection, app: str, view: str) -> None:
    """Remove a view's table, and who keeps it, in one transaction.

    Raises MillstreamError while its owner is connected, and for a table with rows that no query of Millstream's has written.
    """
    with connection.transaction():
        ensure_table(connection)
        known = _ended(connection, app, view)
        table = sql.Identifier(app, view)
        there = exists(connection, app, view)
        if known is None and there and filled(connection, table):
            raise MillstreamError(
                f"{app}.{view} has rows, and no query of Millstream's has written them: drop it in PostgreSQL if it is yours."
            )
        if known is None and not there:
            raise MillstreamError(f"there is no view {app}.{view}.")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        connection.execute("DELETE FROM millstream.checkpoints WHERE app = %s AND view = %s", [app, view])


def exists(connection: Connection, schema: str, table: str) -> bool:
    """Return whether a table exists."""
    name = sql.Identifier(schema, table).as_string(connection)
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,)


def filled(connection: Connection, table: sql.Identifier) -> bool:
    """Return whether a table has rows."""
    return connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(table)).fetchone() == (True,)


def lock(connection: Connection, name: str) -> None:
    """Wait for others with the same name until their transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"millstream {name}"])


def _ended(connection: Connection, app: str, view: str) -> Owner | None:
    lock(connection, f"{app}.{view}")
    known = owner(connection, app, view)
    if known is not None and known.active:
        raise MillstreamError(f"the view {app}.{view} is being written: {known.describe()}. End that run first.")
    return known


def _owner(facts: dict[str, Any], active: bool) -> Owner:
    return Owner(
        app=facts["app"],
        view=facts.get("view") or facts["query"],
        query=facts["query"],
        query_id=facts["query_id"],
        batch_id=facts["batch_id"],
        at=_time(facts.get("at")),
        place=facts.get("place"),
        since=_time(facts.get("since")),
        active=active,
        rebuild=bool(facts.get("rebuild")),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
