"""Which segments have to go: pure values."""

import pytest

from millstream.log.retention import Piece, deletable

PIECES = [Piece(0, 100, 10, 1000), Piece(10, 100, 20, 2000), Piece(20, 100, 30, 3000)]
DEFAULTS = {"start": 0, "now": 0, "retention_ms": -1, "retention_bytes": -1, "limit": 30}


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 0),
        ({"retention_ms": 500, "now": 1500}, 0),
        ({"retention_ms": 500, "now": 1501}, 1),
        ({"retention_ms": 500, "now": 9000}, 3),
        ({"retention_bytes": 300}, 0),
        ({"retention_bytes": 201}, 0),
        ({"retention_bytes": 200}, 1),
        ({"retention_bytes": 100}, 2),
        ({"retention_bytes": 0}, 3),
        ({"start": 9}, 0),
        ({"start": 10}, 1),
        ({"start": 30}, 2),
        ({"retention_ms": 500, "now": 9000, "limit": 15}, 1),
        ({"retention_ms": 500, "now": 1501, "retention_bytes": 100}, 2),
    ],
)
def test_what_goes(settings, count):
    assert deletable(PIECES, **{**DEFAULTS, **settings}) == count


def test_an_old_segment_behind_a_young_one_stays():
    pieces = [Piece(0, 100, 10, 9000), Piece(10, 100, 20, 1000), Piece(20, 0, 20, -1)]
    assert deletable(pieces, **{**DEFAULTS, "retention_ms": 500, "now": 9100}) == 0


def test_an_empty_last_segment_stays():
    assert deletable([Piece(5, 0, 5, -1)], **{**DEFAULTS, "retention_ms": 0, "retention_bytes": 0, "now": 10}) == 0


def test_a_segment_that_compaction_emptied_goes_with_the_next():
    pieces = [Piece(0, 0, 10, -1), Piece(10, 100, 20, 1000), Piece(20, 0, 30, -1), Piece(30, 100, 40, 5000)]
    settings = {**DEFAULTS, "limit": 40, "retention_ms": 500}
    assert deletable(pieces, **{**settings, "now": 1400}) == 0
    assert deletable(pieces, **{**settings, "now": 1600}) == 2
    assert deletable(pieces, **{**settings, "now": 6000}) == 4


def test_no_timestamps_no_retention_by_time():
    assert deletable([Piece(0, 10, 5, -1)], **{**DEFAULTS, "retention_ms": 0, "now": 10}) == 0
