"""Views in PostgreSQL: batches of rows into a table, each exactly once: rows and the number of their batch are one transaction.

A batch that is there already (Spark repeats one after a crash) is skipped; whether a run may write a view at all is decided in
the same transaction (`ownership`). A view that is given to another run is emptied in the transaction of that run's first batch.

Keys may hold nulls, because grouping by a nullable column gives a null group: so the key is a unique constraint that treats
nulls as equal (NULLS NOT DISTINCT, PostgreSQL 15), not a primary key.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from millstream.postgresql.connect import Connection, connect, identifiers
from millstream.settings import MillstreamError, Settings
from millstream.stores import checkpoints, failpoints
from millstream.stores.ownership import Step, decide
from millstream.stores.reading import read, tables
from millstream.stores.schema import ensure
from millstream.stores.staging import OPTIONS, pieces
from millstream.stores.store import Claim
from millstream.stores.target import Target, type_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeptTable", "apply", "drop", "keep", "prepare", "read", "rebuild", "tables"]

_log = logging.getLogger(__name__)


def keep(
    settings: Settings, name: str, schema: pa.Schema, key: Sequence[str], claim: Claim, application: str = "millstream"
) -> KeptTable:
    """See Store. The view is the table "<app>"."<name>"."""
    return KeptTable(settings.postgres, Target.of(claim.app, name, schema, key), claim, application)


def check(app: str, name: str, schema: pa.Schema, key: Sequence[str]) -> None:
    """See Store."""
    Target.of(app, name, schema, key)


def rebuild(settings: Settings, app: str, name: str) -> None:
    """See Store."""
    with connect(settings.postgres, autocommit=True) as connection:
        checkpoints.give(connection, app, name)


def drop(settings: Settings, app: str, name: str) -> None:
    """See Store."""
    with connect(settings.postgres, autocommit=True) as connection:
        checkpoints.drop(connection, app, name)


class KeptTable:
    """See Kept. Holds one connection, which stays open between batches: by it others see that the owner is there."""

    def __init__(self, conninfo: str, target: Target, claim: Claim, application: str = "millstream") -> None:
        self._conninfo = conninfo
        self._target = target
        self._claim = claim
        self._application = application
        self._connection: Connection | None = None
        prepare(self._connected(), target, claim)

    def apply(self, rows: pa.Table, *, query_id: str, batch_id: int, whole: bool = False) -> int | None:
        """See Kept."""
        try:
            claim = replace(self._claim, query_id=query_id)
            return apply(self._connected(), self._target, rows, claim=claim, batch_id=batch_id, whole=whole)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See Kept."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._conninfo, application=self._application, autocommit=True)
        return self._connection


def prepare(connection: Connection, target: Target, claim: Claim) -> None:
    """Make the target's table, or bring it up to the target, once per process and schema.

    Raises MillstreamError, before anything is touched, when the view is not the claim's; then when the table cannot be made so.
    """
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise ValueError("expected a connection without an open transaction")
    _decide(connection, target, claim, None)
    try:
        checkpoints.ensure_table(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise MillstreamError(
            f"the role {connection.info.user!r} may not keep views in {connection.info.dbname!r}: {error.diag.message_primary}."
            " Grant it CREATE on the database, and the ownership of millstream.checkpoints."
        ) from error
    ensure(connection, target)


def apply(
    connection: Connection,
    target: Target,
    rows: pa.RecordBatch | pa.Table,
    *,
    claim: Claim,
    batch_id: int,
    whole: bool = False,
) -> int | None:
    """Write a batch into the target's table, once. Returns the number of rows sent, or None when the batch was there already.

    Rows whose key is in the table replace what is there. When a key comes several times, the last row of the batch counts.
    Columns of the table that the rows lack keep their values. Call `prepare` first.
    whole: the rows are all that the table is to hold: others are removed, and equal ones are left alone.
    Raises MillstreamError for a view of another owner, and for values that PostgreSQL cannot hold (a NUL character in a text, a
    number that is too large).
    """
    import pyarrow as pa

    names = [column.name for column in target.columns]
    if rows.schema.names != names:
        raise MillstreamError(f"{target.full_name}: expected the columns {names}, got {rows.schema.names}.")
    if claim.query_id is None:
        raise ValueError("expected a claim with the id of the query's checkpoint")
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise ValueError(
            "expected a connection without an open transaction: the batch must be committed here, as a whole"
        )
    with connection.transaction():
        # A second process with the same view (an old one that is not dead yet) waits here for our commit.
        checkpoints.lock(connection, target.full_name)
        step, begins = _decide(connection, target, claim, batch_id)
        if step is Step.SKIP:
            return None
        failpoints.reach(failpoints.CHECKED)
        if step is Step.BEGIN:
            # DELETE, not TRUNCATE: readers see the old rows until this batch is committed, and are never kept waiting.
            connection.execute(sql.SQL("DELETE FROM {}").format(target.sql_name))
            _log.info("%s is emptied: %s begins it again from %s", target.full_name, claim.query, claim.place)
            failpoints.reach(failpoints.EMPTIED)
        if rows.num_rows or whole:
            table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
            _write(connection, target, table, whole)
        failpoints.reach(failpoints.WRITTEN)
        checkpoints.note(connection, target.table, claim, claim.query_id, batch_id, begins=begins)
        failpoints.reach(failpoints.NOTED)
    failpoints.reach(failpoints.COMMITTED)
    return int(rows.num_rows)


def _decide(connection: Connection, target: Target, claim: Claim, batch: int | None) -> tuple[Step, bool]:
    """Return what to do, and whether the claim begins to keep the view with it."""
    known = checkpoints.owner(connection, target.schema, target.table)
    unknown = known is None and checkpoints.exists(connection, target.schema, target.table)
    step = decide(
        target.full_name, known, claim, batch, filled=unknown and checkpoints.filled(connection, target.sql_name)
    )
    moved = known is not None and known.place != claim.place
    return step, known is None or step is Step.BEGIN or moved


def _write(connection: Connection, target: Target, rows: pa.Table, whole: bool) -> None:
    staging = _staging(connection, target)
    columns = [c.name for c in target.columns]
    copy = sql.SQL("COPY {} ({}) FROM STDIN WITH ({})").format(staging, identifiers(columns), sql.SQL(OPTIONS))
    try:
        with connection.cursor().copy(copy) as writer:
            for piece in pieces(rows, target):
                writer.write(piece)
        changed = [name for name in columns if name not in target.key]
        action: sql.Composable = sql.SQL("NOTHING")
        if changed:
            action = sql.SQL("UPDATE SET {}").format(
                sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed)
            )
        if whole:
            _remove_others(connection, target, staging)
        if whole and changed:
            action += sql.SQL(" WHERE ({old}) IS DISTINCT FROM ({new})").format(
                old=sql.SQL(", ").join(sql.Identifier(target.schema, target.table, name) for name in changed),
                new=sql.SQL(", ").join(sql.Identifier("excluded", name) for name in changed),
            )
        connection.execute(
            sql.SQL(
                "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {staging}"
                " ORDER BY {key}, _position DESC ON CONFLICT ({key}) DO {action}"
            ).format(
                table=target.sql_name,
                columns=identifiers(columns),
                key=identifiers(target.key),
                staging=staging,
                action=action,
            )
        )
        connection.execute(sql.SQL("TRUNCATE {}").format(staging))
    except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as error:
        said = error.diag.message_primary or str(error)
        context = f" ({error.diag.context})" if error.diag.context else ""
        raise MillstreamError(f"{target.full_name} cannot hold a row: {said}{context}.") from error


def _remove_others(connection: Connection, target: Target, staging: sql.Identifier) -> None:
    """Remove the rows whose key is not staged. One with a null in its key counts as such, and is inserted again."""
    same = sql.SQL(" AND ").join(sql.SQL("s.{0} = t.{0}").format(sql.Identifier(name)) for name in target.key)
    connection.execute(
        sql.SQL("DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT FROM {staging} AS s WHERE {same})").format(
            table=target.sql_name, staging=staging, same=same
        )
    )


def _staging(connection: Connection, target: Target) -> sql.Identifier:
    """The session's temporary table with the target's columns, emptied; made once per session and set of columns."""
    digest = hashlib.sha256(repr(target).encode()).hexdigest()[:16]
    name = sql.Identifier(f"millstream_{digest}")
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(c.name), type_name(c.type)) for c in target.columns
    )
    connection.execute(
        sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}, _position bigint GENERATED ALWAYS AS IDENTITY)").format(
            name, columns
        )
    )
    return name
