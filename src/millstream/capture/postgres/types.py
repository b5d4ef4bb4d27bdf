"""PostgreSQL's types as kinds of fields, and their text form as JSON values. The snapshot and the log give the same text.

int2 int4 int8 oid      long       number
float4 float8           double     number; NaN and the infinities as the strings "NaN", "Infinity", "-Infinity"
numeric                 decimal    string, every digit kept ("NaN" and the infinities too)
boolean                 boolean
timestamptz             timestamp  "2013-01-01T05:00:00.5+00:00"; infinite ones become the years 9999 and 0001
timestamp               string     "2013-01-01T05:00:00.5": without a zone it names no moment, so it is no timestamp
date                    date       "2013-01-01"; infinite ones as for timestamps
bytea                   binary     base64
json jsonb, arrays      json       a string that holds JSON text
all others              string     PostgreSQL's own text
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

Convert = Callable[[str], object]

BOOL, BYTEA, INT8, INT2, INT4, OID, JSON, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 26, 114, 700, 701
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, JSONB = 1082, 1114, 1184, 1700, 3802

_BC = re.compile(r"(\d+)(.*) BC")


@dataclass(frozen=True)
class Type:
    """A column's type. base: the object id without domains; element: the base type of an array's elements, 0 for no array."""

    base: int
    element: int = 0
    delimiter: str = ","

    @property
    def kind(self) -> str:
        """The kind of field (see millstream.event) that values of this type become."""
        return "json" if self.element else _KINDS.get(self.base, "string")

    def converter(self) -> Convert | None:
        """Return what turns PostgreSQL's text into a value for msgspec's JSON encoder; None when the text is the value."""
        if self.element:
            element, delimiter = Type(self.element).converter(), self.delimiter
            if self.element in (JSON, JSONB):  # inside JSON text, JSON is itself and not a string
                element = msgspec.Raw
            return lambda text: msgspec.json.encode(array(text, element, delimiter)).decode()
        return _CONVERTERS.get(self.base)


def array(text: str, element: Convert | None = None, delimiter: str = ",") -> list[object]:
    """Return the values of an array in PostgreSQL's text form, `{1,"a b",NULL,{2}}`, nested as it is.

    Bounds (`[2:3]={…}`) are dropped. Raises ValueError when the text is no array.
    """
    if text.startswith("["):
        text = text.partition("=")[2]
    stack: list[list[object]] = []
    at, end = 0, len(text)
    result: list[object] | None = None
    while at < end and result is None:
        char = text[at]
        if char == "{":
            stack.append([])
            at += 1
        elif char == "}":
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                result = done
            at += 1
        elif char == delimiter:
            at += 1
        elif char == '"':
            value, at = _quoted(text, at + 1)
            stack[-1].append(element(value) if element else value)
        else:
            start = at
            while text[at] not in (delimiter, "}"):
                at += 1
            value = text[start:at]
            stack[-1].append(None if value.upper() == "NULL" else element(value) if element else value)
    if result is None:
        raise ValueError(f"expected an array such as {{1,2}}, got {text[:80]!r}")
    return result


def _quoted(text: str, at: int) -> tuple[str, int]:
    parts = []
    while (char := text[at]) != '"':
        if char == "\\":
            at += 1
            char = text[at]
        parts.append(char)
        at += 1
    return "".join(parts), at + 1


def _boolean(text: str) -> bool:
    return text == "t"


def _number(text: str) -> object:
    return text if text[-1] in "Ny" else msgspec.Raw(text.encode())  # NaN, Infinity, -Infinity


def _binary(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text[2:])).decode()  # \x… (bytea_output = hex)


def _timestamptz(text: str) -> str:
    if text[-3:] == "+00":  # the sessions' zone is UTC
        return f"{text[:10]}T{text[11:]}:00" if text[10] == " " else text.replace(" ", "T", 1) + ":00"
    if text.endswith("infinity"):
        return "0001-01-01T00:00:00+00:00" if text[0] == "-" else "9999-12-31T23:59:59.999999+00:00"
    return _before_christ(text).replace(" ", "T", 1) + ":00"


def _timestamp(text: str) -> str:
    if text.endswith("infinity"):
        return "0001-01-01T00:00:00" if text[0] == "-" else "9999-12-31T23:59:59.999999"
    return _before_christ(text).replace(" ", "T", 1)


def _date(text: str) -> str:
    if text.endswith("infinity"):
        return "0001-01-01" if text[0] == "-" else "9999-12-31"
    return _before_christ(text)


def _before_christ(text: str) -> str:
    """ISO 8601 counts astronomically: 1 BC is the year 0000, 44 BC is -0043."""
    if not (found := _BC.fullmatch(text)):
        return text
    year = int(found[1]) - 1
    return f"{'-' if year else ''}{year:04d}{found[2]}"


_KINDS = {
    BOOL: "boolean",
    BYTEA: "binary",
    INT2: "long",
    INT4: "long",
    INT8: "long",
    OID: "long",
    JSON: "json",
    JSONB: "json",
    FLOAT4: "double",
    FLOAT8: "double",
    NUMERIC: "decimal",
    TIMESTAMPTZ: "timestamp",
    DATE: "date",
}
_CONVERTERS: dict[int, Convert] = {
    BOOL: _boolean,
    BYTEA: _binary,
    INT2: int,
    INT4: int,
    INT8: int,
    OID: int,
    FLOAT4: _number,
    FLOAT8: _number,
    TIMESTAMP: _timestamp,
    TIMESTAMPTZ: _timestamptz,
    DATE: _date,
}
