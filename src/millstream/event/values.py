"""The types that fields may have: which there are, and the check that a value must pass when an event is made.

Values are exact: a subclass, numpy's or pandas', has no form in a message. What passes here is accepted by `event.decode`
and by Spark, with an equal value.
"""

from __future__ import annotations

import enum
import math
import types
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from millstream.settings import MillstreamError

# Of decimal(38,18), which columns of decimals are.
DIGITS, DECIMALS = 20, 18
MAX_SHOWN = 80  # characters of a value in a message, which people read
_INT_64 = range(-(2**63), 2**63)

SUPPORTED = "str, int, float, bool, datetime, date, Decimal, bytes, list[…], dict[str, …] and classes of ms.Event"
_INSTEAD: tuple[tuple[tuple[type, ...], str], ...] = (
    ((set, frozenset, tuple), "list[…]"),
    ((complex,), "two fields of float, or a class of ms.Event that has them"),
    ((time,), "str (12:30:00), or a datetime"),
    ((timedelta,), "float, in seconds"),
    ((enum.Enum, uuid.UUID), "str"),
    ((bytearray, memoryview), "bytes"),
)


class Wrong(NamedTuple):
    """A value that is not of its type. path: behind the field's name, "[3]" for one.   expected: in words."""

    path: str
    expected: str
    came: object

    def at(self, place: str) -> Wrong:
        """Return the same, seen from outside `place`."""
        return self._replace(path=place + self.path)

    def __str__(self) -> str:
        text = repr(self.came)
        shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
        return f"expected {self.expected}, got {shown} ({type(self.came).__name__})."


Check = Callable[[Any], "Wrong | None"]


class Checked(NamedTuple):
    """A field's check. exact: the type of which every value is right, asked first since it costs nothing; None for none."""

    name: str
    exact: type | None
    check: Check


def checks(owner: type) -> tuple[Checked, ...]:
    """Return the checks of a struct's fields, in their order.

    Raises MillstreamError when a type cannot be a field's, saying which to use; NameError when a name in an annotation is not
    defined yet.
    """
    hints = get_type_hints(owner)
    names: tuple[str, ...] = owner.__struct_fields__  # type: ignore[attr-defined]
    return tuple(
        Checked(name, _exact(hints[name]), _check(hints[name], f"{owner.__name__}.{name}", {owner})) for name in names
    )


def optional(annotation: object) -> tuple[object, bool]:
    """Return the type without `| None`, and whether it had that: (Union of the others, …) where there are several."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return (members[0] if len(members) == 1 else annotation), len(members) < len(get_args(annotation))
    return annotation, False


def plain(annotation: object) -> object:
    """Return the type that an `Annotated[…]` or a `NewType` stands for."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation


def _exact(annotation: object) -> type | None:
    inner = plain(optional(plain(annotation))[0])
    return inner if inner in (str, bool, bytes, date) else None  # type: ignore[return-value]


def _check(annotation: object, where: str, outer: set[type]) -> Check:
    inner, absent = optional(plain(annotation))
    inner = plain(inner)
    found = _check_of(inner, where, outer)
    if not absent:
        return found

    def check(value: Any) -> Wrong | None:
        if value is None or (wrong := found(value)) is None:
            return None
        return wrong if wrong.path else wrong._replace(expected=f"{wrong.expected} or None")

    return check


def _check_of(kind: object, where: str, outer: set[type]) -> Check:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    of = get_args(kind)
    match get_origin(kind) or kind:
        case builtin if builtin is list:
            return _list(_check(of[0], f"{where}[…]", outer) if of else _json)
        case builtin if builtin is dict:
            if of and plain(of[0]) is not str:
                raise MillstreamError(f"{where}: expected dict[str, …], got {_name(kind)}; names in JSON are text.")
            return _dict(_check(of[1], f"{where}[…]", outer) if of else _json)
        case builtin if isinstance(builtin, type) and issubclass(builtin, msgspec.Struct):
            return _struct(builtin, where, outer)
    if kind is Any or kind is object:
        return _json
    if get_origin(kind) in (Union, types.UnionType):
        raise MillstreamError(f"{where}: expected one type, optionally | None, got {_name(kind)}.")
    raise MillstreamError(f"{where}: {_name(kind)} is no type of a field; {_instead(kind)}.")


def _instead(kind: object) -> str:
    made = get_origin(kind) or kind
    if made is Literal:
        return "use str"
    if isinstance(made, type):
        for found, text in _INSTEAD:
            if issubclass(made, found):
                return f"use {text}"
    return f"there are {SUPPORTED}"


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _list(of: Check) -> Check:
    def check(value: Any) -> Wrong | None:
        if not isinstance(value, list):
            return Wrong("", "a list", value)
        for number, item in enumerate(value):
            if (wrong := of(item)) is not None:
                return wrong.at(f"[{number}]")
        return None

    return check


def _dict(of: Check) -> Check:
    def check(value: Any) -> Wrong | None:
        if not isinstance(value, dict):
            return Wrong("", "a dict", value)
        for name, item in value.items():
            if type(name) is not str:
                return Wrong(" (a key)", "str", name)
            if (wrong := of(item)) is not None:
                return wrong.at(f"[{name!r}]")
        return None

    return check


def _struct(kind: type, where: str, outer: set[type]) -> Check:
    """An event's own fields were checked when it was made; those of another struct are looked at here."""
    if kind not in outer and not hasattr(kind, "__checks__"):
        try:
            hints = get_type_hints(kind)
        except NameError:
            hints = {}  # decoding says so
        for name in kind.__struct_fields__ if hints else ():  # type: ignore[attr-defined]
            _check(hints[name], f"{where}.{name}", outer | {kind})
    found: tuple[Checked, ...] | None = None

    def check(value: Any) -> Wrong | None:
        nonlocal found
        if not isinstance(value, kind):
            return Wrong("", _name(kind), value)
        if hasattr(kind, "__checks__"):
            return None
        found = checks(kind) if found is None else found
        for name, exact, of in found:
            item = getattr(value, name)
            if type(item) is not exact and (wrong := of(item)) is not None:
                return wrong.at(f".{name}")
        return None

    return check


def _of(kind: type, expected: str) -> Check:
    return lambda value: None if type(value) is kind else Wrong("", expected, value)


def _int(value: Any) -> Wrong | None:
    return None if type(value) is int and value in _INT_64 else Wrong("", "an int of 64 bits", value)


def _float(value: Any) -> Wrong | None:
    if type(value) is float:
        return (
            None
            if math.isfinite(value)
            else Wrong("", "a finite float (JSON has no other; None is for unknown)", value)
        )
    try:
        return None if type(value) is int and math.isfinite(float(value)) else Wrong("", "a float", value)
    except OverflowError:
        return Wrong("", "a float", value)


def _datetime(value: Any) -> Wrong | None:
    if type(value) is not datetime:
        hint = " (.to_pydatetime() makes one)" if hasattr(value, "to_pydatetime") else ""
        return Wrong("", f"a datetime with a time zone{hint}", value)
    return None if value.utcoffset() is not None else Wrong("", "a datetime with a time zone", value)


def _decimal(value: Any) -> Wrong | None:
    expected = f"a Decimal of at most {DIGITS} digits and {DECIMALS} decimals"
    if type(value) is not Decimal or not value.is_finite():
        return Wrong("", expected, value)
    _, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    decimals = -int(exponent) - (len(text) - len(text.rstrip("0")))
    fits = not text or (len(text) + int(exponent) <= DIGITS and decimals <= DECIMALS)
    return None if fits else Wrong("", expected, value)


def _json(value: Any) -> Wrong | None:
    """Any value that JSON has."""
    if value is None or type(value) in (str, bool, int):
        return None
    if type(value) is float:
        return _float(value)
    if isinstance(value, list):
        return _list(_json)(value)
    if isinstance(value, dict):
        return _dict(_json)(value)
    return Wrong("", "a JSON value (None, bool, int, float, str, list, dict)", value)


_SIMPLE: dict[object, Check] = {
    str: _of(str, "str"),
    int: _int,
    float: _float,
    bool: _of(bool, "bool"),
    datetime: _datetime,
    date: _of(date, "a date"),
    Decimal: _decimal,
    bytes: _of(bytes, "bytes"),
}
