"""Numbers, times and values as people read them."""

import pytest

from millstream.serve import text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.count(336776), "336,776"), (text.count(None), "–"), (text.count(0), "0"),
        (text.short(950), "950"), (text.short(1234), "1.2 k"), (text.short(34_000), "34.0 k"), (text.short(340_000), "340 k"),
        (text.short(5_600_000), "5.6 M"), (text.short(999_960), "1.0 M"),
        (text.rate(0), "0"), (text.rate(0.42), "0.4"), (text.rate(1240.4), "1,240"), (text.rate(None), "–"),
        (text.size(512), "512 B"), (text.size(1_400_000), "1.4 MB"),
        (text.duration(0.038), "38 ms"), (text.duration(4.21), "4.2 s"), (text.duration(200), "3 min 20 s"),
        (text.duration(7500), "2 h 5 min"), (text.duration(86_400), "1 d"),
        (text.moment("2013-01-03T09:00:00-05:00"), "2013-01-03 14:00"),
        (text.moment("2013-01-03T14:00:07Z"), "2013-01-03 14:00:07"),
        (text.moment("soon"), "soon"), (text.moment(None), "–"),
        (text.cell(12345, "integer"), "12,345"), (text.cell(1.5, "number"), "1.50"), (text.cell(None, "text"), "–"),
        (text.brief(True), "yes"), (text.brief("x" * 1000), "x" * 299 + "…"), (text.brief(0.1 + 0.2), "0.3"),
        (text.sentence("It is gone"), "It is gone."), (text.sentence("Gone? "), "Gone?"),
    ],
)  # fmt: skip
def test_texts(shown, expected):
    assert shown == expected


def test_a_sparkline_grows_from_the_right_and_stands_on_zero():
    assert text.points([0, 5, 10], 60, 20, slots=4) == "20.0,20.0 40.0,10.0 60.0,0.0"
    assert text.points([1], 60, 20) == ""
    assert text.points([0.0, 0.0], 60, 20, slots=2) == "0.0,20.0 60.0,20.0"


@pytest.mark.parametrize("given", ["abc\u202edef", "\x1b[31m", "\u2066x", "\u200b", "\ufeff", "\u2028", "a\rb"])
def test_what_is_not_seen_is_shown(given):
    assert "⟨U+" in text.visible(given) and text.visible(text.visible(given)) == text.visible(given)


@pytest.mark.parametrize("given", ["Zürich\nline\ttab", "👩\u200d🚀", "می\u200cخواهم", 3, None, "a\u00a0b"])
def test_what_is_meant_stays(given):
    assert text.visible(given) == given


@pytest.mark.parametrize("show", [text.count, text.short, text.rate, text.size, text.duration, text.clock])
@pytest.mark.parametrize("given", ["x", [], {}, True, 10**400, 1e300, float("nan"), float("inf"), -1e300])
def test_what_is_no_figure_is_shown_as_none(show, given):
    assert isinstance(show(given), str)
