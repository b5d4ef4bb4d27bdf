"""Sizes and times as people say them."""

import pytest

from millstream.cli.groups import size, span


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, None),
        (0, "0 B"),
        (950, "950 B"),
        (1200, "1.2 kB"),
        (34_000_000, "34 MB"),
        (999_999, "1.0 MB"),
        (10**18, "1000000 TB"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, None),
        (0.2, "0 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (7210, "2 h"),
        (350_000, "4 d 1 h"),
    ],
)
def test_times(seconds, text):
    assert span(seconds) == text
