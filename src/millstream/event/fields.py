"""The fields of an event class as plain values, from which schemas elsewhere (Spark's, PostgreSQL's) are made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import get_type_hints

import msgspec

from millstream.event.event import Event, checks_of
from millstream.event.values import optional, plain
from millstream.settings import MillstreamError

# `json` is whatever has no column type of its own (lists, objects): it travels as JSON text.
KINDS = ("string", "long", "double", "boolean", "timestamp", "date", "decimal", "binary", "json")
_KIND_OF: dict[object, str] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    datetime: "timestamp",
    date: "date",
    Decimal: "decimal",
    bytes: "binary",
}


@dataclass(frozen=True)
class Field:
    """A column: its name, its kind (one of KINDS), and whether it may be null or absent."""

    name: str
    kind: str
    nullable: bool = False


def fields(event: type[Event]) -> tuple[Field, ...]:
    """Return the fields of an event class in their order.

    Raises MillstreamError when `event` is no Event class, a field is a union of several types, or has a default other than
    None: what is absent in a message is null in Spark.
    """
    if not (isinstance(event, type) and issubclass(event, Event)):
        raise MillstreamError(
            f"expected a subclass of millstream.Event, got {event!r}. Declare: class Departure(ms.Event): …"
        )
    checks_of(event)
    hints = get_type_hints(event)
    found = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(event)}  # type: ignore[arg-type]
    for name in event.__struct_fields__:
        kind, nullable = _kind(hints[name])
        if name.startswith("_"):
            raise MillstreamError(
                f"{event.__name__}.{name}: names with a leading underscore are kept for Millstream's own columns."
            )
        if defaults[name] is not msgspec.NODEFAULT and defaults[name] is not None:
            raise MillstreamError(
                f"{event.__name__}.{name}: a field that may be absent is None then; declare {name}: … | None without a default."
            )
        found.append(Field(name, kind, nullable))
    if not found:
        raise MillstreamError(f"{event.__name__} has no fields. Annotate at least one: name: str")
    return tuple(found)


def _kind(annotation: object) -> tuple[str, bool]:
    inner, nullable = optional(plain(annotation))
    return _KIND_OF.get(plain(inner), "json"), nullable
