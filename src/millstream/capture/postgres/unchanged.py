"""Large values that updates leave alone, and that the log therefore lacks: read from the tables, those of many updates at once.

A table may hold a later row than the update by then; the change that made it so follows in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millstream.capture.postgres.catalog import CatalogTable
from millstream.capture.postgres.pgoutput import Update, Values
from millstream.capture.postgres.snapshot import Unseen, snapshot
from millstream.capture.source import TableProblem
from millstream.postgresql.connect import Connection

FIRST = 16  # rows of the first query, when the values' size is unknown
MAX_ROWS = 1000  # of a query
MAX_BYTES = 8 << 20  # of what a query returns, aimed at by the size of the values before


@dataclass(frozen=True)
class Wanted:
    """Values of one row. key: by name, in text; columns: the names of the missing ones."""

    table: CatalogTable
    key: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]


class Unchanged:
    """Reads the values. waiting: called while the source has no snapshot that sees all that was received."""

    def __init__(self, connection: Connection, unseen: Unseen, waiting: Callable[[], bool]) -> None:
        self.rows = FIRST  # how many are wanted at once
        self._connection = connection
        self._unseen = unseen
        self._waiting = waiting

    def read(self, updates: Iterable[tuple[Update, Wanted]]) -> dict[int, Values | TableProblem | None]:
        """Return the columns of each row by the id() of its update; None for a row that is gone, a problem for a table."""
        groups: dict[tuple[int, tuple[str, ...], tuple[str, ...]], list[tuple[Update, Wanted]]] = {}
        for update, wanted in updates:
            group = (update.relation, tuple(name for name, _ in wanted.key), wanted.columns)
            groups.setdefault(group, []).append((update, wanted))
        found: dict[int, Values | TableProblem | None] = {}
        size = 0
        for members in groups.values():
            values = self._group([wanted for _, wanted in members])
            found |= {id(update): row for (update, _), row in zip(members, values, strict=True)}
            size += sum(len(v) for row in values if isinstance(row, list) for v in row if isinstance(v, str))
        if found:
            self.rows = max(1, min(MAX_ROWS, 4 * len(found), MAX_BYTES * len(found) // max(size, 1)))
        return found

    def _group(self, rows: Sequence[Wanted]) -> Sequence[Values | TableProblem | None]:
        table, columns = rows[0].table, rows[0].columns
        with snapshot(self._connection, self._unseen, self._waiting):
            try:
                found = {r[0]: list(r[1:]) for r in self._connection.execute(_query(rows)).fetchall()}
            except psycopg.errors.UndefinedColumn:  # dropped since, which the log will tell
                return [[None] * len(columns) for _ in rows]
            except psycopg.errors.UndefinedTable:
                return [None] * len(rows)
            except psycopg.errors.InsufficientPrivilege as error:
                problem = TableProblem(f"{table.full_name} cannot be read: {error.diag.message_primary}")
                return [problem] * len(rows)
        return [found.get(number) for number in range(len(rows))]


def _query(rows: Sequence[Wanted]) -> sql.Composed:
    """Return the query for rows of one table, by the same key and with the same columns: the place in `rows`, then the values."""
    table, names = rows[0].table, [name for name, _ in rows[0].key]
    aliases = [sql.Identifier(f"k{i}") for i in range(len(names))]
    wanted = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(
            sql.Literal(number),
            sql.SQL(", ").join(
                sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(table.declared[name]))  # type: ignore[arg-type]  # format_type's
                for name, text in row.key
            ),
        )
        for number, row in enumerate(rows)
    )
    return sql.SQL("SELECT w.n, {} FROM (VALUES {}) AS w(n, {}) JOIN {} AS t ON {}").format(
        sql.SQL(", ").join(sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in rows[0].columns),
        wanted,
        sql.SQL(", ").join(aliases),
        table.sql_name,
        sql.SQL(" AND ").join(
            sql.SQL("t.{} = w.{}").format(sql.Identifier(name), alias)
            for name, alias in zip(names, aliases, strict=True)
        ),
    )
