"""The functions on a made-up day, compared with what pandas says of it."""

from datetime import UTC, datetime

import pandas as pd
from feed import made
from trips import Ride, Trip, located, long, rides_by_hour

import millstream as ms

STATIONS = [{"id": number, "city": ("Oslo", "Bergen", "Bodø")[number % 3]} for number in range(1, 21)]
TRIPS = list(made(500))


def frame(events: list[Trip]) -> pd.DataFrame:
    return pd.DataFrame([{name: getattr(event, name) for name in Trip.__struct_fields__} for event in events])


def test_every_trip_gets_its_city():
    rows = ms.testing.run(located, TRIPS, STATIONS)
    expected = frame(TRIPS).merge(pd.DataFrame(STATIONS), left_on="station", right_on="id", suffixes=("", "_station"))
    assert {row["id"]: row["city"] for row in rows} == dict(zip(expected["id"], expected["city"], strict=True))
    assert [Ride(**row) for row in rows], "its rows are what the next query reads"


def test_rides_by_city_and_hour():
    rides = [Ride(**row) for row in ms.testing.run(located, TRIPS, STATIONS)]
    rows = ms.testing.run(rides_by_hour, rides=rides)
    located_trips = frame(TRIPS).merge(pd.DataFrame(STATIONS).rename(columns={"id": "station"}), on="station")
    expected = located_trips.groupby(["city", located_trips["started_at"].dt.floor("h")])["minutes"].agg(
        ["count", "sum", "max"]
    )
    found = {
        (row["city"], pd.Timestamp(row["hour_start"])): (row["rides"], row["minutes"], row["longest"]) for row in rows
    }
    assert found == {key: tuple(row) for key, row in zip(expected.index, expected.itertuples(index=False), strict=True)}


def test_a_bicycle_that_stays_out_is_an_alert():
    at = datetime(2026, 6, 1, tzinfo=UTC)
    out = [Trip(id=n, bike="b", station=1, started_at=at, minutes=minutes) for n, minutes in enumerate((180.0, 181.0))]
    assert [row["id"] for row in ms.testing.run(long, out)] == [1]
