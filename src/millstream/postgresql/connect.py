"""Connections to PostgreSQL: named, with time limits, and with errors that say what to do."""

from __future__ import annotations

from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from millstream.settings import MillstreamError, Unreachable, redact

CONNECT_S = 10  # a server that does not answer within this is reported, not waited for
# A connection whose other side vanished (a pulled cable) is noticed within about 30 s + 3 * 10 s.
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

Connection = psycopg.Connection[TupleRow]

# What libpq and PostgreSQL say, and what to do about it. Only the text tells them apart: libpq gives no code for failed
# connections.
_ADVICE = (
    ("password authentication failed", "Check user and password."),
    ("no password supplied", "The server wants a password: add one, or passfile=PATH, to the connection string."),
    ("no pg_hba.conf entry", "The server's pg_hba.conf has no line for this user, database and address."),
    ("does not exist", "Create it, or correct the name in the connection string."),
    ("too many", "The server has no connection left: raise max_connections, or end other clients."),
    ("remaining connection slots are reserved", "The server has no connection left: raise max_connections."),
    ("could not translate host name", "Check the host's name."),
    ("Name or service not known", "Check the host's name."),
    ("Connection refused", "Nothing listens there: is the server running, and is the port right?"),
    ("timeout expired", "The host does not answer: check the address and the firewall."),
    ("starting up", "The server is starting or recovering; try again in a moment."),
    ("shutting down", "The server is shutting down."),
    ("SSL", "Check sslmode and the certificates in the connection string."),
)


# What waiting does not mend.
_REFUSALS = (
    "authentication failed",
    "no password",
    "no pg_hba.conf",
    "does not exist",
    "host name",
    "not known",
    "SSL",
)


def connect(
    conninfo: str,
    *,
    application: str = "millstream",
    autocommit: bool = False,
    database: str | None = None,
    statement_timeout_s: float = 0,
    **more: object,
) -> Connection:
    """Connect to PostgreSQL.

    application: shown in pg_stat_activity. database: instead of the one in the connection string.
    statement_timeout_s: how long a statement may take, 0 for as long as it takes. more: libpq parameters.
    Raises Unreachable when the server does not answer or is not ready, and another MillstreamError when it refuses.
    """
    parameters = _parameters(conninfo)
    options = str(parameters.get("options") or "")
    if statement_timeout_s:
        options += f" -c statement_timeout={int(statement_timeout_s * 1000)}"
    defaults = {"connect_timeout": CONNECT_S, "client_encoding": "UTF8", **_KEEPALIVE}
    changes: dict[str, object] = {"application_name": application, **more}
    if database is not None:
        changes["dbname"] = database
    if options.strip():
        changes["options"] = f"{options} {changes.get('options') or ''}".strip()
    try:
        return psycopg.connect(**{**defaults, **parameters, **changes}, autocommit=autocommit)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise explain(error, conninfo) from error


def explain(error: Exception, conninfo: str) -> MillstreamError:
    """Return the error for the user of a failed connection."""
    said = " ".join(str(error).split())
    advice = next((advice for words, advice in _ADVICE if words in said), "")
    kind = MillstreamError if any(words in said for words in _REFUSALS) else Unreachable
    return kind(redact(f"PostgreSQL at {address(conninfo)}: {said}. {advice}".rstrip()))


def address(conninfo: str) -> str:
    """Return "host:port/database" of a connection string, for messages."""
    found = _parameters(conninfo)
    return f"{found.get('host') or 'local socket'}:{found.get('port') or 5432}/{found.get('dbname') or ''}"


def with_database(conninfo: str, database: str) -> str:
    """Return the connection string with another database."""
    _parameters(conninfo)
    return make_conninfo(conninfo, dbname=database)


def ensure_database(conninfo: str, name: str) -> str:
    """Create the database `name` on the server of `conninfo` unless it exists; return its connection string.

    Raises MillstreamError when the role may not create databases.
    """
    with connect(conninfo, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            try:
                # template0: exact, and not blocked by somebody connected to template1
                connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                pass  # somebody else was faster: as good
            except psycopg.errors.InsufficientPrivilege as error:
                raise MillstreamError(
                    f"the database {name!r} does not exist at {address(conninfo)}, and the role {connection.info.user!r} may"
                    f' not create it. As an administrator: CREATE DATABASE "{name}" OWNER "{connection.info.user}";'
                ) from error
    return with_database(conninfo, name)


def identifier(*names: str) -> sql.Identifier:
    """Return a quoted, possibly qualified name for a query."""
    return sql.Identifier(*names)


def identifiers(names: list[str] | tuple[str, ...]) -> sql.Composed:
    """Return quoted names, separated by commas."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def statement(text: LiteralString, **parts: sql.Composable) -> sql.Composed:
    """Return `text` with its {placeholders} filled by composed parts."""
    return sql.SQL(text).format(**parts)


def _parameters(conninfo: str) -> dict[str, object]:
    try:
        return dict(conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError as error:
        raise MillstreamError(
            f"expected a PostgreSQL connection string (postgresql://user@host/db or host=… dbname=…), got"
            f" {redact(conninfo)!r}: {redact(str(error)).strip()}"
        ) from error
