"""Decoder of pgoutput, PostgreSQL's logical replication messages (protocol version 1, text values). Bytes in, values out.

Source: PostgreSQL documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from millstream.settings import MillstreamError


class Unchanged:
    """The type of UNCHANGED: a large value that an update left alone, and that the log therefore does not hold."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Values: TypeAlias = list[str | Unchanged | None]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts. commit_lsn: where its commit record is; commit_ms: epoch milliseconds of the commit."""

    commit_lsn: int
    commit_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction ends. end_lsn: the position to confirm once everything of it is stored elsewhere."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as the changes that follow have it. key: part of the replica identity."""

    name: str
    type: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the changes that follow have it. identity: d default, n nothing, f full, i index."""

    id: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Insert(msgspec.Struct, gc=False):
    """A new row."""

    relation: int
    new: Values


class Update(msgspec.Struct, gc=False):
    """A changed row. old: the identity's old values (others None) when they changed, the whole old row when `full`, or None."""

    relation: int
    new: Values
    old: Values | None
    full: bool


class Delete(msgspec.Struct, gc=False):
    """A deleted row. old: the identity's values (others None), or the whole row when `full`."""

    relation: int
    old: Values
    full: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Emptied tables."""

    relations: tuple[int, ...]


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate

_EPOCH_MS = 946_684_800_000  # 2000-01-01, PostgreSQL's epoch, in Unix milliseconds
_U16 = Struct(">H")
_I32 = Struct(">i")
_U32 = Struct(">I")
_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_TRUNCATE = Struct(">IB")
_COLUMN = Struct(">Ii")

_id = _U32.unpack_from
_size = _I32.unpack_from

_UPDATE, _INSERT = b"UI"
_TEXT, _NULL, _SAME = b"tnu"
_NEW, _KEY, _OLD = b"NKO"


def decode(data: bytes, at: int = 0) -> Message | None:
    """Return the message that begins there, or None for one that carries no change (type, origin, logical message).

    Raises MillstreamError for one that is not of the protocol.
    """
    kind = data[at]
    if kind == _UPDATE:
        return _update(data, at)
    if kind == _INSERT:
        return Insert(_id(data, at + 1)[0], _tuple(data, at + 6)[0])
    try:
        decoder = _DECODERS[kind]
    except KeyError:
        raise MillstreamError(
            f"expected a pgoutput message of protocol version 1, got type {data[at : at + 1]!r}; the server sent what was not"
            " asked for."
        ) from None
    return decoder(data[at:]) if decoder else None


def _begin(data: bytes) -> Begin:
    lsn, at, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, _EPOCH_MS + at // 1000, xid)


def _commit(data: bytes) -> Commit:
    _, lsn, end, _ = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end)


def _relation(data: bytes) -> Relation:
    (relation,) = _U32.unpack_from(data, 1)
    schema, at = _string(data, 5)
    table, at = _string(data, at)
    identity = chr(data[at])
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        key = bool(data[at] & 1)
        name, at = _string(data, at + 1)
        kind, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(name, kind, modifier, key))
    # The empty name stands for pg_catalog.
    return Relation(relation, schema or "pg_catalog", table, identity, tuple(columns))


def _update(data: bytes, at: int) -> Update:
    (relation,) = _id(data, at + 1)
    kind = data[at + 5]
    if kind == _NEW:
        return Update(relation, _tuple(data, at + 6)[0], None, False)
    old, at = _tuple(data, at + 6)
    return Update(relation, _tuple(data, at + 1)[0], old, kind == _OLD)


def _delete(data: bytes) -> Delete:
    return Delete(_U32.unpack_from(data, 1)[0], _tuple(data, 6)[0], data[5] == _OLD)


def _truncate(data: bytes) -> Truncate:
    count, _ = _TRUNCATE.unpack_from(data, 1)
    return Truncate(tuple(_U32.unpack_from(data, 6 + 4 * i)[0] for i in range(count)))


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    count = (data[at] << 8) | data[at + 1]
    at += 2
    values: Values = []
    add = values.append
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _size(data, at + 1)[0]
            add(str(data[start:at], "utf-8"))
        elif kind == _NULL:
            add(None)
            at += 1
        elif kind == _SAME:
            add(UNCHANGED)
            at += 1
        else:
            raise MillstreamError(f"expected a text, null or unchanged value in a pgoutput row, got {chr(kind)!r}.")
    return values, at


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


_DECODERS = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("Y"): None,
    ord("O"): None,
    ord("M"): None,
}
