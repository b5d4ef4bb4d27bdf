"""The fields of an event class as plain values, from which schemas elsewhere (Spark's, PostgreSQL's) are made."""

from __future__ import annotations

import types
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import msgspec

from millstream.event.event import Event
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
    try:
        hints = get_type_hints(event)
    except NameError as error:
        raise MillstreamError(
            f"{event.__name__}: the annotation {error.name!r} is not defined at the top of its module."
        ) from error
    found = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(event)}  # type: ignore[arg-type]
    for name in event.__struct_fields__:
        kind, nullable = _kind(hints[name], f"{event.__name__}.{name}")
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


def _kind(annotation: object, where: str) -> tuple[str, bool]:
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0], where)
    if get_origin(annotation) in (Union, types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) != 1:
            raise MillstreamError(f"{where}: expected one type, optionally | None, got {annotation}.")
        return _kind(members[0], where)[0], True
    return _KIND_OF.get(annotation, "json"), False
