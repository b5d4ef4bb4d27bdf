"""The batch computation: a week of it against plain arithmetic over the CSV file."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from statistics import fmean

import pytest

from millstream.demo import data
from millstream.demo.batch import expected


@pytest.fixture(scope="module")
def week():
    return expected(7)


@pytest.fixture(scope="module")
def rows():
    names, lines = data.rows("flights")
    found = [dict(zip(names, line, strict=True)) for line in lines if line[1] == "1" and int(line[2]) <= 7]
    return [row for row in found if row["dep_time"] != "NA"]


def departed(row):
    return datetime.fromisoformat(row["time_hour"]) + timedelta(minutes=int(row["minute"]) + int(row["dep_delay"]))


def test_hours_are_counts_means_and_interpolated_percentiles(week, rows):
    delays = defaultdict(list)
    for row in rows:
        hour = departed(row).replace(minute=0)
        delays[row["origin"], hour].append(int(row["dep_delay"]))
    assert week.hours.keys() == delays.keys()
    for key, values in delays.items():
        values.sort()
        place = 0.9 * (len(values) - 1)
        low, share = int(place), place % 1
        p90 = values[low] + share * (values[min(low + 1, len(values) - 1)] - values[low])
        hour = week.hours[key]
        assert (hour.flights, hour.delays) == (len(values), tuple(map(float, values)))
        assert hour.mean_delay == pytest.approx(fmean(values))
        assert hour.p90_delay == pytest.approx(p90)


def test_departures_arrivals_and_late_ones(week, rows):
    assert len(week.departures) == len(rows) == 6_064
    assert week.arrivals == sum(r["arr_time"] != "NA" for r in rows)
    assert sum(week.late.values()) == sum(int(r["dep_delay"]) > 120 for r in rows)
    assert set(week.late.values()) == {1}


def test_planes_and_airlines(week):
    first = week.departures["UA", 1545, "EWR", datetime(2013, 1, 1, 10, 15, tzinfo=UTC)]
    assert first == "N14228"
    assert week.models[first] == "737-824"
    assert week.airlines["UA"] == "United Air Lines Inc."


def test_it_agrees_with_the_replay_on_which_flights_there_are(week):
    flights = data.flights(7)
    assert week.departures == {(f.carrier, f.flight, f.origin, data.at(f.scheduled)): f.tailnum for f in flights}
