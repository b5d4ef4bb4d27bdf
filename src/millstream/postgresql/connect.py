"""Connections to PostgreSQL: named, with time limits, and with errors that say what to do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from millstream.settings import MillstreamError, Unreachable, redact

CONNECT_S = 10  # a server that does not answer within this is reported, not waited for
# A connection whose other side vanished (a pulled cable) is noticed within about 30 s + 3 * 10 s.
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

Connection = psycopg.Connection[TupleRow]

# What libpq takes from the environment: it would win over what a connection string leaves open, PGPASSWORD over a passfile.
_VARIABLES = frozenset(
    {option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar}
    | {"PGSERVICEFILE", "PGSYSCONFDIR", "PGTZ", "PGDATESTYLE", "PGGEQO"}
)
_environment = threading.RLock()

# What a server's refusal means that waiting does not mend, by SQLSTATE (PostgreSQL documentation, appendix A).
_FINAL = {"3D000": "Create it, or correct the name in the connection string.", "42501": "The role lacks that right."}
_FINAL_CLASSES = {"28": "Check user and password."}  # invalid authorization specification
# libpq gives no SQLSTATE when connecting fails, so here, and only here, the text decides. All else passes.
_REFUSED_CONNECTING = (
    ("authentication failed", "Check user and password."),
    ("no password supplied", "The server wants a password: add one, or passfile=PATH, to the connection string."),
    ("no pg_hba.conf entry", "The server's pg_hba.conf has no line for this user, database and address."),
    ("does not exist", "Create it, or correct the name in the connection string."),
    ("permission denied for database", "The role needs CONNECT on the database."),
    ("is not permitted to log in", "The role needs LOGIN."),
    ("server does not support SSL", "Check sslmode in the connection string."),
    ("certificate verify failed", "Check sslrootcert in the connection string."),
    ("does not match host name", "The server's certificate is for another host: check the host, or sslmode."),
)
# What may pass, and what to look at when it does not.
_ADVICE = (
    ("too many", "The server has no connection left: raise max_connections, or end other clients."),
    ("remaining connection slots are reserved", "The server has no connection left: raise max_connections."),
    ("could not translate host name", "Check the host's name."),
    ("Connection refused", "Nothing listens there: is the server running, and is the port right?"),
    ("timeout expired", "The host does not answer: check the address and the firewall."),
    ("starting up", "The server is starting or recovering; try again in a moment."),
    ("shutting down", "The server is shutting down."),
    ("SSL", "If it stays so, check sslmode and the certificates in the connection string."),
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
    PG… variables of the environment are for other programs and make no difference here.
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
        with _own_environment():
            return psycopg.connect(**{**defaults, **parameters, **changes}, autocommit=autocommit)  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise explain(error, conninfo, connecting=True) from error


@contextmanager
def _own_environment() -> Iterator[None]:
    """Without libpq's variables, if there are any; one connection at a time then, as the environment is the process's."""
    if not _VARIABLES & os.environ.keys():
        yield
        return
    with _environment:
        kept = {name: os.environ.pop(name) for name in _VARIABLES & os.environ.keys()}
        try:
            yield
        finally:
            os.environ.update(kept)


def explain(error: Exception, conninfo: str, *, connecting: bool = False) -> MillstreamError:
    """Return the error for the user.

    It is Unreachable, which passes, unless PostgreSQL refused what waiting does not mend. connecting: it failed to connect.
    """
    said = " ".join(str(error).split())
    advice = _refusal(error, said, connecting=connecting)
    kind = Unreachable if advice is None else MillstreamError
    if advice is None:
        advice = next((advice for words, advice in _ADVICE if words in said), "")
    return kind(redact(f"PostgreSQL at {address(conninfo)}: {said}. {advice}".rstrip()))


def _refusal(error: Exception, said: str, *, connecting: bool) -> str | None:
    """Return what to do about a refusal that stays, None when it may pass."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return _FINAL.get(state) or _FINAL_CLASSES.get(state[:2])
    if not connecting:
        return None
    return next((advice for words, advice in _REFUSED_CONNECTING if words in said), None)


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
