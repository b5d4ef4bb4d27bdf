"""Events that no query can read: every way in which a sender gets one wrong, made from a good event."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import msgspec


def _changed(value: bytes, **changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(value), **changes})


def _without(value: bytes, field: str) -> bytes:
    return msgspec.json.encode({k: v for k, v in msgspec.json.decode(value).items() if k != field})


# Each takes the JSON of a good departure or arrival and the name of its event time. A message without any value is none of
# these: it is a tombstone, which is no event and no mistake.
KINDS: MappingProxyType[str, Callable[[bytes, str], bytes]] = MappingProxyType(
    {
        "not JSON": lambda value, time: b"flight " + value[1:20],
        "cut off": lambda value, time: value[: len(value) // 2],
        "not UTF-8": lambda value, time: value.replace(b'"origin":"', b'"origin":"\xff\xfe', 1),
        "missing field": lambda value, time: _without(value, "origin"),
        "missing time": lambda value, time: _without(value, time),
        "wrong type": lambda value, time: _changed(value, flight="one hundred"),
        "null where a value is required": lambda value, time: _changed(value, dest=None),
        "naive time": lambda value, time: _changed(value, **{time: "2013-01-01T10:17:00"}),
        "unreadable time": lambda value, time: _changed(value, **{time: "quarter past ten"}),
        "array instead of an object": lambda value, time: b"[" + value + b"]",
        "number instead of an object": lambda value, time: b"42",
        "empty value": lambda value, time: b"",
    }
)
DEFAULT = 2 * len(KINDS)  # each kind in each of the two topics
