"""Functions on rows in memory."""

from datetime import UTC, datetime

import pytest

from millstream.demo.flights import Arrival, Departure, delay_by_hour, enriched, very_late
from millstream.settings import MillstreamError
from millstream.testing.rows import run

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]


def departure(number, delay):
    time = datetime(2013, 1, 1, 5, number, tzinfo=UTC)
    return Departure(
        carrier="AA",
        flight=number,
        origin="JFK",
        dest="LAX",
        tailnum=f"N{number}",
        scheduled_at=time,
        departed_at=time,
        delay=delay,
    )


def test_a_view(spark):
    [row] = run(delay_by_hour, departures=[departure(i, i * 50.0) for i in range(5)])
    assert row == {
        "origin": "JFK",
        "hour_start": datetime(2013, 1, 1, 5, tzinfo=UTC),
        "hour_end": datetime(2013, 1, 1, 6, tzinfo=UTC),
        "flights": 5,
        "mean_delay": 100.0,
        "p90_delay": 180.0,
    }


def test_an_alert_by_position_without_its_origin(spark):
    rows = run(very_late, [departure(1, 5.0), departure(2, 121.0)])
    assert [r["flight"] for r in rows] == [2]
    assert "_origin" not in rows[0]


def test_a_join_with_tables(spark):
    planes = [{"tailnum": "N1", "manufacturer": "BOEING", "model": "737", "seats": 149}]
    rows = run(enriched, [departure(1, 0.0), departure(2, 0.0)], planes, [{"carrier": "AA", "name": "American"}])
    assert sorted((r["tailnum"], r["seats"], r["name"]) for r in rows) == [
        ("N1", 149, "American"),
        ("N2", None, "American"),
    ]


def test_no_events(spark):
    assert run(very_late, Departure) == []


def test_the_origin_is_there_for_those_who_want_it(spark):
    rows = run(lambda d: d.select("_origin.topic", "_origin.offset"), [departure(i, 0.0) for i in range(2)])
    assert rows == [{"topic": "d", "offset": 0}, {"topic": "d", "offset": 1}]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (([],), "got no rows"),
        ((), "takes departures"),
        (([departure(1, 0.0), {"a": 1}],), "Departure, dict"),
        ((Departure, Arrival), "Give rows for each parameter"),
    ],
)
def test_wrong_inputs(spark, inputs, said):
    with pytest.raises(MillstreamError, match=said):
        run(very_late, *inputs)
