"""Rows from PostgreSQL's text, and COPY's lines taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.capture.postgres.rows import Rows, split_copy_row, unescape
from millstream.capture.postgres.types import BOOL, INT4, NUMERIC, Type


def test_values_by_name() -> None:
    rows = Rows(["id", "b", "price", "t"], [Type(INT4), Type(BOOL), Type(NUMERIC), Type(25)])
    assert rows.convert(["1", "t", "1.10", "é"]) == {"id": 1, "b": True, "price": "1.10", "t": "é"}
    assert rows.convert(["1", None, None, None]) == {"id": 1, "b": None, "price": None, "t": None}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("1\ta b\t", ["1", "a b", ""]),
        ("\\N\tx\t\\N", [None, "x", None]),
        ("\\\\N\t\\\\\\\\\t\\t\\n", ["\\N", "\\\\", "\t\n"]),
        ("a\\\\nb\\\\", ["a\\nb\\"]),
        ("", [""]),
    ],
)
def test_copy_rows(line: str, values: list[str | None]) -> None:
    assert split_copy_row(line) == values


@given(
    st.lists(
        st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), min_size=1
    )
)
def test_copy_rows_of_any_text(values: list[str | None]) -> None:
    escapes = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    line = "\t".join("\\N" if v is None else "".join(escapes.get(c, c) for c in v) for v in values)
    assert split_copy_row(line) == values


def test_unescape_at_the_end() -> None:
    assert unescape("\\\\") == "\\"
    assert unescape("x\\\\\\\\") == "x\\\\"
