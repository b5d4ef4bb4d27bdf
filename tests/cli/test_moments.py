"""Where to start reading, as people write it."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from millstream.cli.moments import ago, parse
from millstream.settings import MillstreamError

ZONE = timezone(timedelta(hours=-5))
NOW = datetime(2013, 1, 2, 12, 30, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        (" Latest ", "latest"),
        ("0", 0),
        ("1200", 1200),
        ("-10", -10),
        ("2013-01-01T08:00Z", datetime(2013, 1, 1, 8, tzinfo=UTC)),
        ("2013-01-01 08:00:00+02:00", datetime(2013, 1, 1, 6, tzinfo=UTC)),
        ("2013-01-01T08:00", datetime(2013, 1, 1, 8, tzinfo=ZONE)),
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=ZONE)),
        ("10 minutes ago", NOW - timedelta(minutes=10)),
        ("1 day 2 hours ago", NOW - timedelta(hours=26)),
        ("today", datetime(2013, 1, 2, tzinfo=ZONE)),
        ("yesterday", datetime(2013, 1, 1, tzinfo=ZONE)),
    ],
)
def test_reads(text, expected):
    assert parse(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "soon", "ten minutes ago", "ago", "1.5", "--3", "2013-13-01", "9" * 30])
def test_refuses(text):
    with pytest.raises(MillstreamError, match="expected"):
        parse(text, NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 hours", timedelta(hours=2)),
        ("PT2H", timedelta(hours=2)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("p7d", timedelta(days=7)),
    ],
)
def test_reads_durations(text, expected):
    assert ago(text, NOW) == NOW - expected


@pytest.mark.parametrize("text", ["", "P", "PT", "P1", "PT2", "-PT2H", "2 hours ago"])
def test_refuses_what_is_no_duration(text):
    with pytest.raises(MillstreamError, match="expected a duration"):
        ago(text, NOW)
