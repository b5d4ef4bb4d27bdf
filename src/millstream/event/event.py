"""The event: a frozen, typed record. Times carry a zone; naive ones are refused when an event is made and when it is read."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import msgspec

if TYPE_CHECKING:
    # msgspec tells type checkers that a Struct is a mutable dataclass unless each class says otherwise. Events say it once.
    @dataclass_transform(frozen_default=True, kw_only_default=True)
    class _Struct:
        __struct_fields__: ClassVar[tuple[str, ...]]
        __struct_defaults__: ClassVar[tuple[Any, ...]]

        def __init_subclass__(cls, *, frozen: bool = True, kw_only: bool = True) -> None: ...

else:
    _Struct = msgspec.Struct


class Event(_Struct, frozen=True, kw_only=True):
    """Base of every event. Subclass it and annotate the fields:

        class Departure(ms.Event):
            origin: str
            tailnum: str | None = None
            departed_at: datetime

    Fields may be str, int, float, bool, datetime, date, Decimal, bytes, each optionally `| None`, or lists, dicts and
    msgspec structs of these. An event is immutable. A datetime without a time zone raises ValueError.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ValueError(
                    f"{type(self).__name__}.{name} must have a time zone, got the naive time {value.isoformat()}"
                )


E = TypeVar("E", bound=Event)


def encode(event: Event) -> bytes:
    """Return the event as a JSON object; times are ISO 8601 with their offset."""
    return msgspec.json.encode(event)


def decode(kind: type[E], data: bytes) -> E:
    """Return the event that `data`, a JSON object, holds.

    Raises msgspec.ValidationError (a ValueError) naming the field when one is missing, of the wrong type, or a naive time, and
    msgspec.DecodeError when `data` is not JSON. Unknown fields are ignored, so that a topic may gain fields.
    """
    return msgspec.json.decode(data, type=kind)
