"""PostgreSQL's text values as JSON values."""

from __future__ import annotations

import json

import msgspec
import pytest

from millstream.capture.postgres import types
from millstream.capture.postgres.types import Type, array


def as_json(kind: Type, text: str) -> object:
    converter = kind.converter()
    return json.loads(msgspec.json.encode(converter(text) if converter else text))


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (types.BOOL, "t", True),
        (types.BOOL, "f", False),
        (types.INT8, "-9223372036854775808", -(2**63)),
        (types.FLOAT8, "1e+300", 1e300),
        (types.FLOAT8, "0.1", 0.1),
        (types.FLOAT8, "-0", 0),
        (types.FLOAT4, "NaN", "NaN"),
        (types.FLOAT8, "Infinity", "Infinity"),
        (types.FLOAT8, "-Infinity", "-Infinity"),
        (types.NUMERIC, "1.10", "1.10"),
        (types.NUMERIC, "NaN", "NaN"),
        (types.BYTEA, "\\x00ff", "AP8="),
        (types.BYTEA, "\\x", ""),
        (types.DATE, "2013-02-28", "2013-02-28"),
        (types.DATE, "infinity", "9999-12-31"),
        (types.DATE, "-infinity", "0001-01-01"),
        (types.DATE, "0001-12-31 BC", "0000-12-31"),
        (types.TIMESTAMPTZ, "2013-01-01 05:00:00+00", "2013-01-01T05:00:00+00:00"),
        (types.TIMESTAMPTZ, "2013-01-01 05:00:00.123456+00", "2013-01-01T05:00:00.123456+00:00"),
        (types.TIMESTAMPTZ, "12013-01-01 05:00:00+00", "12013-01-01T05:00:00+00:00"),
        (types.TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", "-0043-03-15T00:00:00+00:00"),
        (types.TIMESTAMPTZ, "infinity", "9999-12-31T23:59:59.999999+00:00"),
        (types.TIMESTAMPTZ, "-infinity", "0001-01-01T00:00:00+00:00"),
        (types.TIMESTAMP, "2013-01-01 05:00:00.5", "2013-01-01T05:00:00.5"),
        (types.TIMESTAMP, "0044-03-15 00:00:00 BC", "-0043-03-15T00:00:00"),
        (types.JSONB, '{"a": 1.50}', '{"a": 1.50}'),
        (25, 'text "x" \\ \n é', 'text "x" \\ \n é'),
    ],
)
def test_values(oid: int, text: str, value: object) -> None:
    assert as_json(Type(oid), text) == value


@pytest.mark.parametrize(
    ("oid", "kind"),
    [
        (25, "string"),
        (2950, "string"),
        (types.INT2, "long"),
        (types.NUMERIC, "decimal"),
        (types.TIMESTAMP, "string"),
        (99999, "string"),
    ],
)
def test_kinds(oid: int, kind: str) -> None:
    assert Type(oid).kind == kind
    assert Type(oid, element=25).kind == "json"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{}", []),
        ("{1,2}", ["1", "2"]),
        ("{NULL,null,x}", [None, None, "x"]),
        ('{"NULL","",a b}', ["NULL", "", "a b"]),
        ('{"a,b","q\\"\\\\"," "}', ["a,b", 'q"\\', " "]),
        ("{{1,2},{3,4}}", [["1", "2"], ["3", "4"]]),
        ('{{"{"},{"}"}}', [["{"], ["}"]]),
        ("[2:3]={7,8}", ["7", "8"]),
        ("[1:1][0:1]={{a,b}}", [["a", "b"]]),
    ],
)
def test_arrays(text: str, values: list[object]) -> None:
    assert array(text) == values


def test_array_elements_are_converted() -> None:
    assert as_json(Type(1, element=types.INT4), "{1,NULL}") == "[1,null]"
    assert as_json(Type(1, element=types.JSONB), '{"{\\"a\\": 1}"}') == '[{"a": 1}]'
    assert as_json(Type(1, element=types.FLOAT8), "{NaN,1.5}") == '["NaN",1.5]'
    assert as_json(Type(1, element=603, delimiter=";"), "{(1,1),(0,0);(2,2),(0,0)}") == '["(1,1),(0,0)","(2,2),(0,0)"]'


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        array("{1,2")
