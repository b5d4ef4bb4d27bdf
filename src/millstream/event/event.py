"""The event: a frozen, typed record. Times carry a zone; naive ones are refused when an event is made and when it is read."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform, get_args

import msgspec

from millstream.event.values import Checked, checks
from millstream.settings import MillstreamError


class EventError(MillstreamError, ValueError):
    """A value that is not of its field's type: names the field, what was expected, and what came."""


def _annotations(namespace: dict[str, Any]) -> Mapping[str, object]:
    """The annotations of a class that is being made: objects, or text where they are not evaluated."""
    if sys.version_info >= (3, 14) and "__annotations__" not in namespace:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        return annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF) if annotate else {}
    found: Mapping[str, object] = namespace.get("__annotations__", {})
    return found


def _optional(annotation: object) -> bool:
    if isinstance(annotation, str):
        return re.search(r"\b(None|Optional)\b", annotation) is not None and "ClassVar" not in annotation
    return type(None) in get_args(annotation)


if TYPE_CHECKING:
    # msgspec tells type checkers that a Struct is a mutable dataclass unless each class says otherwise. Events say it once.
    @dataclass_transform(frozen_default=True, kw_only_default=True)
    class _Struct:
        __struct_fields__: ClassVar[tuple[str, ...]]
        __struct_defaults__: ClassVar[tuple[Any, ...]]
        __checks__: ClassVar[tuple[Checked, ...] | None]

else:

    class _EventMeta(msgspec.StructMeta):
        """Every event class is frozen and made by keywords, and an optional field may be left out: it is None then.

        `__checks__` of a class are those of its fields; None while a name in its annotations is not defined yet.
        """

        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> type:
            for field, annotation in _annotations(namespace).items():
                if field not in namespace and _optional(annotation):
                    namespace[field] = None
            made = super().__new__(cls, name, bases, namespace, **({"frozen": True, "kw_only": True} | options))
            made.__checks__ = None
            with contextlib.suppress(NameError):
                made.__checks__ = checks(made)
            return made

    class _Struct(msgspec.Struct, metaclass=_EventMeta):
        pass


class Event(_Struct):
    """Base of every event. Subclass it and annotate the fields:

        class Departure(ms.Event):
            origin: str
            tailnum: str | None
            departed_at: datetime

    Fields may be str, int, float, bool, datetime, date, Decimal, bytes, each optionally `| None`, or lists, dicts (by str) and
    event classes of these. An optional field may be left out, in Python and in a message: it is None then. Events are
    immutable, and checked when they are made: EventError (a ValueError) names the field, what was expected and what came.
    A type that no field can have is refused where the class is declared (MillstreamError).
    """

    def __post_init__(self) -> None:
        for name, exact, check in type(self).__checks__ or checks_of(type(self)):
            value = getattr(self, name)
            if type(value) is not exact and (wrong := check(value)) is not None:
                raise EventError(f"{type(self).__name__}.{name}{wrong.path}: {wrong}")


def checks_of(kind: type[Event]) -> tuple[Checked, ...]:
    """Return the checks of an event class; made now where its annotations named what was defined after it.

    Raises MillstreamError when a name is not defined at all.
    """
    if kind.__checks__ is None:
        try:
            kind.__checks__ = checks(kind)
        except NameError as error:
            raise MillstreamError(
                f"{kind.__name__}: the annotation {error.name!r} is not defined at the top of its module."
            ) from error
    return kind.__checks__


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
