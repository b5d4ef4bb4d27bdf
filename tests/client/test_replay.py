"""Where a group would go, by values."""

from datetime import UTC, datetime

import pytest

from millstream.client.replay import Move, Shift, moves
from millstream.settings import MillstreamError

A, B = ("t", 0), ("t", 1)
STARTS, ENDS = {A: 10, B: 0}, {A: 100, B: 50}


@pytest.mark.parametrize(
    ("aim", "after"),
    [
        ("earliest", [(10, False), (0, False)]),
        ("latest", [(100, False), (50, False)]),
        (30, [(30, False), (30, False)]),
        (70, [(70, False), (50, True)]),
        (5, [(10, True), (5, False)]),
        (Shift(-15), [(10, True), (5, False)]),
        (Shift(40), [(60, False), (50, True)]),
    ],
)
def test_aims(aim, after):
    assert moves([B, A], {A: 20, B: 20}, STARTS, ENDS, aim) == [
        Move("t", 0, 20, after[0][0], after[0][1]),
        Move("t", 1, 20, after[1][0], after[1][1]),
    ]


def test_a_time_is_what_the_log_says_and_the_end_when_nothing_is_that_new():
    found = moves([A, B], {A: 20}, STARTS, ENDS, datetime(2013, 1, 1, tzinfo=UTC), {A: 42, B: -1})
    assert found == [Move("t", 0, 20, 42), Move("t", 1, None, 50)]


def test_only_what_is_somewhere_can_be_shifted():
    with pytest.raises(MillstreamError, match=r"no offset in t \[1\] that could be shifted"):
        moves([A, B], {A: 20}, STARTS, ENDS, Shift(1))
