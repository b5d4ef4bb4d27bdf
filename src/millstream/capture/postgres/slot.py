"""The publication and the replication slot of an application in a source database: checked, made, and known to be ours."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millstream.capture.postgres.catalog import publishes_generated
from millstream.capture.source import SourceTable
from millstream.postgresql.connect import Connection, address
from millstream.settings import MillstreamError

MAX_NAME = 63  # PostgreSQL cuts longer names
IN_USE_S = (
    40.0  # how long a slot may stay with the connection of a killed capture: a little more than wal_sender_timeout
)
SPEAK_S = 10.0  # a wait for the source's transactions says so after this long
_POLL_S = 0.1
# Who holds a table's lock holds up that table, and not the others: it is tried again.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"
_NOT_NOW = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
    psycopg.errors.DuplicateObject,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.FeatureNotSupported,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slot:
    """A slot as pg_replication_slots shows it. lost: why its log is gone, empty while it is not."""

    name: str
    database: str
    plugin: str
    active_pid: int | None
    confirmed: int
    lost: str


def slot_name(app: str, source: str) -> str:
    """Return the name of the slot and the publication: letters, digits and underscores, unique for (app, source)."""
    plain = f"millstream_{app}_{source}"
    name = re.sub(r"[^a-z0-9_]", "_", plain.lower())
    if name == plain and len(name) <= MAX_NAME and "_" not in app:
        return name
    digest = hashlib.sha256(f"{app}/{source}".encode()).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


def check_source(connection: Connection, conninfo: str, slot: str) -> None:
    """Raise MillstreamError, saying what to do, when the server cannot give its log to us."""
    where = address(conninfo)
    user = connection.info.user
    if connection.info.server_version < 140000:
        raise MillstreamError(f"PostgreSQL at {where} is older than 14, the oldest that capture works with.")
    level = _one(connection, "SHOW wal_level")
    if level != "logical":
        raise MillstreamError(
            f"PostgreSQL at {where} has wal_level = {level}; capture needs logical: ALTER SYSTEM SET wal_level = logical; and"
            " restart the server."
        )
    allowed = _one(
        connection,
        "SELECT rolsuper OR rolreplication OR EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = 'rds_replication'"
        " AND pg_has_role(current_user, r.oid, 'MEMBER')) FROM pg_roles WHERE rolname = current_user",
    )
    if not allowed:
        raise MillstreamError(f'the role {user!r} at {where} may not replicate: ALTER ROLE "{user}" REPLICATION;')
    if find(connection, slot) is None:
        used = _one(connection, "SELECT count(*) FROM pg_replication_slots")
        limit = int(str(_one(connection, "SHOW max_replication_slots")))
        if int(str(used)) >= limit:
            raise MillstreamError(
                f"PostgreSQL at {where} has all its {limit} replication slots in use: raise max_replication_slots and restart"
                " it, or drop one that nobody needs (SELECT * FROM pg_replication_slots WHERE NOT active)."
            )


def published(connection: Connection, name: str) -> set[tuple[str, str]] | None:
    """Return the (schema, table) that the publication holds, None when there is no such publication."""
    if not _one(connection, "SELECT count(*) FROM pg_publication WHERE pubname = %s", name):
        return None
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid"
        " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
        [name],
    ).fetchall()
    return {(row[0], row[1]) for row in rows}


def publish(connection: Connection, name: str, tables: Sequence[SourceTable]) -> dict[str, str]:
    """Make the publication hold exactly the tables; return why it does not, by the full names of tables, where that failed.

    Raises MillstreamError when the role may not make a publication.
    """
    wanted = {(t.schema, t.name) for t in tables}
    present = published(connection, name)
    if present is None:
        _create_publication(connection, name, tables)
        present = set()
    problems: dict[str, str] = {}
    changes = [("DROP", t) for t in sorted(present - wanted)] + [("ADD", t) for t in sorted(wanted - present)]
    for action, table in changes:
        query = sql.SQL("ALTER PUBLICATION {} {} TABLE {}")
        try:
            with connection.transaction():
                connection.execute(_LOCK_TIMEOUT)
                connection.execute(query.format(sql.Identifier(name), sql.SQL(action), sql.Identifier(*table)))
        except psycopg.errors.InsufficientPrivilege as error:
            problems[".".join(table)] = _may_not_publish(connection, name, ".".join(table), error)
        except _NOT_NOW as error:
            problems[".".join(table)] = f"{'.'.join(table)} cannot be published now: {error.diag.message_primary}"
    return problems


def _create_publication(connection: Connection, name: str, tables: Sequence[SourceTable]) -> None:
    options = "publish_via_partition_root = true"
    if publishes_generated(connection):
        options += ", publish_generated_columns = stored"
    try:
        connection.execute(sql.SQL("CREATE PUBLICATION {} WITH ({})").format(sql.Identifier(name), sql.SQL(options)))
    except psycopg.errors.InsufficientPrivilege as error:
        names = ", ".join(t.full_name for t in tables)
        raise MillstreamError(_may_not_publish(connection, name, names, error)) from error


def _may_not_publish(connection: Connection, name: str, tables: str, error: psycopg.Error) -> str:
    return (
        f"the role {connection.info.user!r} may not publish {tables}: {error.diag.message_primary}. It must own the tables"
        f" and have CREATE on the database {connection.info.dbname!r}. Or their owner runs: CREATE PUBLICATION {name} FOR"
        f" TABLE {tables} WITH (publish_via_partition_root = true);"
    )


def horizon(connection: Connection) -> int:
    """Return a mark for `ended`: what the transactions that run now wrote before a table was published is in no log of ours."""
    return int(str(_one(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")))


def ended(connection: Connection, before: int) -> bool:
    """Whether every transaction that ran at the `horizon` has ended."""
    return int(str(_one(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text"))) >= before


def oldest(connection: Connection) -> str:
    """Return the transaction that has run longest, in words."""
    row = connection.execute(
        "SELECT pid, usename, application_name, now() - xact_start FROM pg_stat_activity"
        " WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1"
    ).fetchone()
    return "process {} of {} ({}), running for {}".format(*row) if row else "a prepared transaction"


def find(connection: Connection, name: str) -> Slot | None:
    """Return the slot, None when there is none."""
    why = "s.invalidation_reason" if connection.info.server_version >= 170000 else "NULL"
    row = connection.execute(
        "SELECT s.database, s.plugin, s.active_pid, COALESCE(s.confirmed_flush_lsn, '0/0') - '0/0'::pg_lsn, s.wal_status,"
        f" {why} FROM pg_replication_slots s WHERE s.slot_name = %s",  # type: ignore[arg-type]  # one of two constants
        [name],
    ).fetchone()
    if row is None:
        return None
    database, plugin, pid, confirmed, status, reason = row
    lost = ""
    if status == "lost" or reason:
        lost = reason or "wal_removed"
    return Slot(name, database, plugin, pid, int(confirmed), lost)


def create(connection: Connection, name: str, stop: threading.Event, waiting: Callable[[], None]) -> int:
    """Create the slot and return its position. Waits for the transactions that run now; `waiting` is called meanwhile.

    Raises MillstreamError when the server refuses.
    """
    spoken = time.monotonic() + SPEAK_S
    # On a connection of its own, because the call blocks until those transactions have ended.
    problem: list[BaseException] = []
    position: list[int] = []

    def work() -> None:
        try:
            row = connection.execute(
                "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [name]
            ).fetchone()
            assert row is not None
            position.append(int(row[0]))
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=work, name="millstream-slot", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
        waiting()
        if stop.is_set():
            connection.cancel_safe(timeout=5)
            thread.join(5)
        elif time.monotonic() > spoken:
            _log.warning("waiting for the source's running transactions before its log can be followed")
            spoken += 60
    if problem and not stop.is_set():
        raise MillstreamError(f"the replication slot {name} cannot be created: {problem[0]}") from problem[0]
    return position[0] if position else 0


def drop(connection: Connection, name: str) -> None:
    """Drop the slot if it is there."""
    with suppress(psycopg.errors.UndefinedObject):
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def remove(connection: Connection, name: str, *, publication: bool = True) -> None:
    """Drop the slot, once nobody follows it any more, and the publication, if they are there."""
    wait_until_free(connection, name, threading.Event())
    drop(connection, name)
    if publication:
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def wait_until_free(connection: Connection, name: str, stop: threading.Event) -> None:
    """Wait until nobody follows the slot. Raises MillstreamError when somebody goes on doing so."""
    deadline = time.monotonic() + IN_USE_S
    while (slot := find(connection, name)) is not None and slot.active_pid is not None and not stop.is_set():
        if time.monotonic() > deadline:
            raise MillstreamError(
                f"the replication slot {name} is in use by process {slot.active_pid} of the source. Another run of this"
                " application follows the same database; stop it, or give this one another name."
            )
        stop.wait(_POLL_S)


def _one(connection: Connection, query: str, *parameters: object) -> object:
    row = connection.execute(query, parameters or None).fetchone()  # type: ignore[arg-type]  # constants of this file
    return row[0] if row else None
