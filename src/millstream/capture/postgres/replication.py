"""The source's log as a stream of messages: START_REPLICATION over libpq's COPY_BOTH mode."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from struct import Struct

import psycopg
from psycopg import pq

from millstream.capture.postgres.catalog import OPTIONS
from millstream.postgresql.connect import CONNECT_S, connect, explain
from millstream.settings import MillstreamError

_DATA = Struct(">cQQq")  # 'w', start, end, server clock; the message follows
_KEEPALIVE = Struct(">cQqB")  # 'k', end, server clock, reply requested
_STATUS = Struct(">cQQQqB")  # 'r', written, flushed, applied, client clock, reply requested
_EPOCH_S = 946_684_800
DATA, KEEPALIVE = ord("w"), ord("k")


class Replication:
    """A replication connection that follows one slot. One thread at a time."""

    def __init__(self, conninfo: str, application: str) -> None:
        self._conninfo = conninfo
        self._connection = connect(
            conninfo,
            application=application,
            autocommit=True,
            replication="database",
            options=OPTIONS,
            connect_timeout=CONNECT_S,
        )
        self._pg = self._connection.pgconn

    def system(self) -> str:
        """Return the identifier of the database cluster, made when it was initialized."""
        result = self._pg.exec_(b"IDENTIFY_SYSTEM")
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._failed("IDENTIFY_SYSTEM", result)
        return (result.get_value(0, 0) or b"").decode()

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Begin to receive the transactions that were committed after `lsn`. Raises MillstreamError when it is refused.

        The slot may be behind `lsn`: PostgreSQL saves its position at checkpoints, so a crash of the source sets it back.
        """
        quoted = publication.replace("'", "''")
        at = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
        command = f"START_REPLICATION SLOT {slot} LOGICAL {at} (proto_version '1', publication_names '\"{quoted}\"')"
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failed("START_REPLICATION", result)
        self._pg.nonblocking = 1
        self.receive: Callable[[], bytes | None] = self._receive

    def _receive(self) -> bytes | None:
        """Return the next message, framed as the protocol has it, or None when none has arrived."""
        size, data = self._pg.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            try:
                self._pg.consume_input()
            except psycopg.OperationalError as error:
                raise explain(error, self._conninfo) from error
            size, data = self._pg.get_copy_data(1)
            if size > 0:
                return bytes(data)
            if size == 0:
                return None
        raise self._failed("following the log", self._pg.get_result())

    def wait(self, timeout: float) -> None:
        """Wait until something can be received, at most `timeout` seconds."""
        select.select([self._pg.socket], [], [], timeout)

    def confirm(self, lsn: int) -> None:
        """Tell the source that everything up to `lsn` is stored, so that it may forget it. Repeating it keeps us alive."""
        clock = int((time.time() - _EPOCH_S) * 1_000_000)
        self._pg.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, clock, 0))
        self._pg.flush()

    def close(self) -> None:
        """End the connection; the slot stays."""
        self._connection.close()

    def _failed(self, doing: str, result: pq.abc.PGresult | None) -> MillstreamError:
        """Return the error; `result`, where there is one, has its SQLSTATE."""
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error: psycopg.Error = psycopg.errors.error_from_result(result)
        else:
            said = self._pg.get_error_message() or "the server ended the stream"
            error = psycopg.OperationalError(said)
        found = explain(error, self._conninfo)
        return type(found)(f"{doing}: {found}")


def data_header(frame: bytes) -> tuple[int, int]:
    """Return (position of the change, position of the server) of a data frame; the message starts at byte 25."""
    _, start, end, _ = _DATA.unpack_from(frame)
    return start, end


def keepalive(frame: bytes) -> tuple[int, bool]:
    """Return (position up to which everything was sent, whether an answer is wanted) of a keepalive frame."""
    _, end, _, reply = _KEEPALIVE.unpack_from(frame)
    return end, bool(reply)
