"""Patterns from clients: ordinary ones work, those that could take for ever are refused."""

import pytest

from millstream.broker.patterns import PatternError, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders-.*", "orders-eu", True),
        ("(a|b)+-[0-9]{1,3}", "abba-12", True),
        ("^flights\\..*_v[0-9]+$", "flights.x_v2", True),
        ("orders", "orders-eu", False),
        ("(?i)ORDERS", "orders", True),
    ],
)
def test_ordinary_patterns(pattern, name, matches):
    assert bool(compile_pattern(pattern).fullmatch(name)) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a*)*b", "(.*a){30}", "(x+x+)+y", ".*.*.*.*.*x", r"(a)\1", "(?=a)b", "a(?!b)", "(", "a" * 2000, "[z-a]"],
)
def test_what_is_refused(pattern):
    with pytest.raises(PatternError):
        compile_pattern(pattern)
