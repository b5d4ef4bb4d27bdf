"""Contrast of the page's colours, computed from the style sheet: WCAG 2.2, 1.4.3 (AA): text has at least 4.5 to 1."""

import re

import pytest

from millstream.serve.pages import ASSETS

COLOURS = dict(
    re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}, #[0-9a-f]{6})\)", (ASSETS / "console.css").read_text())
)
TEXT = ("ink", "soft", "faint", "water", "busy", "warn", "bad")
PAIRS = [(text, ground) for text in TEXT for ground in ("ground", "surface", "sunk")]
PAIRS += [(name, f"{name}-soft") for name in ("water", "warn", "bad")]
PAIRS += [("ink", f"{name}-soft") for name in ("water", "busy", "warn", "bad")]
PAIRS += [
    ("soft", "line-soft"),
    ("ink", "line-soft"),
    ("soft", "busy-soft"),
    ("soft", "warn-soft"),
    ("soft", "bad-soft"),
    ("soft", "water-soft"),
]


def luminance(colour):
    """The relative luminance of "#rrggbb"."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """The contrast ratio of two colours."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_formula_is_the_standards():
    assert contrast("#000000", "#ffffff") == 21 and round(contrast("#777777", "#ffffff"), 2) == 4.48


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(text, ground, theme):
    pair = [COLOURS[name].split(", ")[theme] for name in (text, ground)]
    assert contrast(*pair) >= 4.5, pair


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("line", [f"s{n}" for n in range(1, 9)])
def test_lines_of_charts_can_be_seen(line, theme):
    """1.4.11: graphical objects have at least 3 to 1."""
    assert contrast(COLOURS[line].split(", ")[theme], COLOURS["surface"].split(", ")[theme]) >= 3
