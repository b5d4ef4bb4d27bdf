"""What the source database says about a table: its columns, its primary key, and whether it can be captured at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from millstream.capture.envelope import Column
from millstream.capture.postgres.pgoutput import RelationColumn
from millstream.capture.postgres.types import NUMERIC, Type
from millstream.capture.source import SourceTable, TableProblem
from millstream.postgresql.connect import Connection

# Both sessions (the copy's and the log's) print values alike, so that a row's key has one form.
SESSION = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "row_security": "off",  # a policy that hides rows from us is an error, not a smaller copy
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
OPTIONS = " ".join(f"-c {name}={value}" for name, value in SESSION.items())

_COLUMNS = """
SELECT a.attname, a.atttypid, a.atttypmod, NOT a.attnotnull, a.attgenerated, a.atthasdef OR a.atthasmissing,
       format_type(a.atttypid, a.atttypmod), a.attnum
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEY = """
SELECT a.attname, a.attnum FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(attnum, position), pg_attribute a
WHERE i.indrelid = %s AND i.indisprimary AND i.indimmediate AND k.position <= i.indnkeyatts
  AND a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY k.position
"""
_RELATION = """
SELECT c.oid, c.relkind, c.relpersistence, c.relreplident, c.reltuples, has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""
_TYPES = """
WITH RECURSIVE resolved AS (
  SELECT oid AS asked, oid, typtype, typbasetype, typelem, typcategory, typlen, typdelim FROM pg_type WHERE oid = ANY(%s)
  UNION ALL
  SELECT r.asked, t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typlen, t.typdelim
  FROM resolved r JOIN pg_type t ON t.oid = r.typbasetype WHERE r.typtype = 'd'
)
SELECT asked, oid, CASE WHEN typcategory = 'A' AND typlen = -1 THEN typelem ELSE 0 END, typdelim
FROM resolved WHERE typtype <> 'd'
"""


@dataclass(frozen=True)
class CatalogTable(SourceTable):
    """A table as PostgreSQL's catalogue has it.

    order: the primary key's columns in the index's order, in which the table is read; `key` has the table's order.
    declared, numbers: the columns' types in SQL and their places, by name. types: the columns' types in their order.
    """

    order: tuple[str, ...]
    declared: Mapping[str, str]
    numbers: Mapping[str, int]
    types: tuple[Type, ...]
    identity: str

    @property
    def sql_name(self) -> sql.Identifier:
        """The quoted name for queries."""
        return sql.Identifier(self.schema, self.name)


def describe(connection: Connection, schema: str, name: str) -> CatalogTable:
    """Return the table `schema`.`name`.

    Raises TableProblem when it does not exist, may not be read, or cannot be captured: no table, unlogged, no (immediate)
    primary key, or a replica identity that does not contain it.
    """
    full = f"{schema}.{name}"
    database = connection.info.dbname
    row = connection.execute(_RELATION, [schema, name]).fetchone()
    if row is None:
        near = connection.execute(
            "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relname = %s AND c.relkind IN ('r', 'p')",
            [name],
        ).fetchall()
        hint = f" There is {', '.join(r[0] for r in near)}." if near else ""
        raise TableProblem(f"the database {database!r} has no table {full}.{hint}")
    oid, kind, persistence, identity, tuples, readable = row
    if kind not in ("r", "p"):
        raise TableProblem(f"{full} in {database!r} is no table; only tables have changes to capture.")
    if persistence != "p":
        raise TableProblem(
            f"{full} is unlogged or temporary: its changes are in no log. ALTER TABLE {full} SET LOGGED;"
        )
    if not readable:
        raise TableProblem(
            f"the role {connection.info.user!r} may not read {full}: GRANT SELECT ON {full} TO {connection.info.user};"
        )
    order = tuple(r[0] for r in connection.execute(_KEY, [oid]).fetchall())
    if not order:
        raise TableProblem(
            f"{full} has no primary key (or a deferrable one), so its rows have no identity in a topic: ALTER TABLE {full} ADD"
            " PRIMARY KEY (…);"
        )
    if identity not in "df":
        raise TableProblem(
            f"{full} has replica identity {'NOTHING' if identity == 'n' else 'USING INDEX'}: changes of its rows would come"
            f" without their primary key. ALTER TABLE {full} REPLICA IDENTITY DEFAULT;"
        )
    found = connection.execute(_COLUMNS, [oid]).fetchall()
    published = [r for r in found if r[4] == "" or (r[4] == "s" and publishes_generated(connection))]
    types = resolve_types(connection, {r[1] for r in published})
    columns = tuple(column(r[0], types[r[1]], r[2], nullable=r[3]) for r in published)
    return CatalogTable(
        id=oid,
        schema=schema,
        name=name,
        columns=columns,
        key=tuple(c.name for c in columns if c.name in order),
        order=order,
        signature={r[0]: f"{r[7]}:{r[6]}" for r in published},
        declared={r[0]: r[6] for r in published},
        numbers={r[0]: r[7] for r in published},
        types=tuple(types[r[1]] for r in published),
        defaulted=frozenset(r[0] for r in published if r[5]),
        identity=identity,
        estimate=max(0, int(tuples)),
    )


def columns_of(
    connection: Connection, relation: int, columns: Sequence[RelationColumn]
) -> tuple[tuple[Column, ...], tuple[Type, ...]]:
    """Return the columns of a RELATION message, and their types; what the message does not say (not null) is as it is now."""
    types = resolve_types(connection, {c.type for c in columns})
    rows = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnotnull AND attnum > 0", [relation]
    ).fetchall()
    required = {row[0] for row in rows}
    found = tuple(types.get(c.type, Type(c.type)) for c in columns)
    pairs = zip(columns, found, strict=True)
    return tuple(column(c.name, t, c.modifier, nullable=c.name not in required) for c, t in pairs), found


def primary_key(connection: Connection, relation: int) -> frozenset[int]:
    """Return the numbers of the primary key's columns, which they keep when renamed; none when there is no key (any more)."""
    return frozenset(r[1] for r in connection.execute(_KEY, [relation]).fetchall())


def column(name: str, kind: Type, modifier: int, *, nullable: bool) -> Column:
    """Return a column; `modifier` is PostgreSQL's atttypmod, which holds a numeric's precision and scale."""
    if kind.base != NUMERIC or kind.element or modifier < 4:
        return Column(name, kind.kind, nullable)
    packed = modifier - 4
    scale = packed & 0x7FF
    return Column(name, kind.kind, nullable, packed >> 16 & 0xFFFF, scale - 2048 if scale > 1023 else scale)


def resolve_types(connection: Connection, oids: Iterable[int]) -> dict[int, Type]:
    """Return the types by object id: domains become what they are made of, arrays know their elements."""
    rows = connection.execute(_TYPES, [list(oids)]).fetchall()
    found = {asked: (base, element, delimiter) for asked, base, element, delimiter in rows}
    elements = {element for _, element, _ in found.values() if element} - found.keys()
    inner = resolve_types(connection, elements) if elements else {}
    result = {}
    for asked, (base, element, delimiter) in found.items():
        if element:
            innermost = inner.get(element) or Type(found.get(element, (element, 0, ","))[0])
            result[asked] = Type(base, innermost.base, delimiter)
        else:
            result[asked] = Type(base)
    return result


def publishes_generated(connection: Connection) -> bool:
    """Whether the server's publications can carry stored generated columns."""
    return connection.info.server_version >= 180000
