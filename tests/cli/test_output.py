"""What commands print: whole when piped, without surprises from the data."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from millstream.cli.output import Output, cell


def test_a_piped_table_is_whole_and_plain(capsys):
    long = "x" * 300
    Output(json=False).table(["name", "n"], [(long, 1234567), ("[bold]b[/]", None)], numbers=["n"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{long}  1,234,567"
    assert lines[2] == "[bold]b[/]"
    assert len(lines) == 3


def test_an_empty_table_says_so(capsys):
    Output(json=False).table(["name"], [], empty="no topics yet")
    assert capsys.readouterr().out == "no topics yet\n"


def test_cells():
    found = [cell(v) for v in (None, True, 1234, 0.456, datetime(2013, 1, 1, 8, tzinfo=UTC), "é")]
    assert found == ["", "yes", "1,234", "0.46", "2013-01-01 08:00:00Z", "é"]


def test_control_characters_are_shown_not_obeyed():
    assert cell("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"


def test_json_of_what_json_lacks(capsys):
    Output(json=True).line({"t": datetime(2013, 1, 1, tzinfo=UTC), "d": Decimal("1.10"), "b": b"\xff"})
    assert json.loads(capsys.readouterr().out) == {"t": "2013-01-01T00:00:00+00:00", "d": "1.10", "b": "\\xff"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Decimal("5.420000000000000000"), "5.42"), (Decimal("1E+3"), "1000"), (Decimal("0.000"), "0"),
        (Decimal("NaN"), "NaN"), (Decimal("1e1000"), "1E+1000"), (1795308532.06, "1795308532.06"), (1234.5, "1,234.50"),
    ],
)  # fmt: skip
def test_figures_are_shown_without_what_only_their_type_adds(value, shown):
    assert cell(value) == shown
