"""The flights application, tested with both halves of the kit: its functions on rows, and the whole of it on its real parts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import millstream as ms
from millstream.demo.flights import Departure, app, delay_by_hour, enriched, very_late

pytestmark = pytest.mark.system

AT = datetime(2013, 1, 1, 10, tzinfo=UTC)
OPS = """
CREATE TABLE planes (tailnum text PRIMARY KEY, year integer, manufacturer text, model text, seats integer);
CREATE TABLE airlines (carrier text PRIMARY KEY, name text);
CREATE TABLE airports (faa text PRIMARY KEY, name text);
INSERT INTO planes VALUES ('N1', 1999, 'BOEING', '737-800', 149);
INSERT INTO airlines VALUES ('UA', 'United Air Lines Inc.');
"""


def departure(
    minutes: float, delay: float, tailnum: str | None = "N1", origin: str = "JFK", flight: int = 1
) -> Departure:
    at = AT + timedelta(minutes=minutes)
    return Departure(
        carrier="UA",
        flight=flight,
        origin=origin,
        dest="ORD",
        tailnum=tailnum,
        scheduled_at=at - timedelta(minutes=delay),
        departed_at=at,
        delay=delay,
    )


@pytest.mark.usefixtures("spark")
class TestFunctionsOnRows:
    def test_delay_by_hour(self):
        rows = ms.testing.run(
            delay_by_hour,
            departures=[departure(5, 10.0), departure(55, 20.0), departure(65, 1.0), departure(5, 7.0, origin="LGA")],
        )
        assert sorted((r["origin"], r["hour_start"].hour, r["flights"], r["mean_delay"]) for r in rows) == [
            ("JFK", 10, 2, 15.0),
            ("JFK", 11, 1, 1.0),
            ("LGA", 10, 1, 7.0),
        ]

    def test_enriched_keeps_departures_without_a_known_plane(self):
        rows = ms.testing.run(
            enriched,
            departures=[departure(0, 1.0), departure(1, 1.0, tailnum="N2"), departure(2, 1.0, tailnum=None)],
            planes=[{"tailnum": "N1", "manufacturer": "BOEING", "model": "737-800", "seats": 149}],
            airlines=[{"carrier": "UA", "name": "United Air Lines Inc."}],
        )
        assert sorted(((r["tailnum"] or "-", r["model"], r["name"]) for r in rows), key=str) == [
            ("-", None, "United Air Lines Inc."),
            ("N1", "737-800", "United Air Lines Inc."),
            ("N2", None, "United Air Lines Inc."),
        ]

    def test_very_late(self):
        rows = ms.testing.run(very_late, departures=[departure(0, 120.0), departure(1, 120.5)])
        assert [r["delay"] for r in rows] == [120.5]


@pytest.fixture(scope="module")
def flights(millstream_running):
    return millstream_running(app, prepare={"ops": OPS})


class TestTheWhole:
    def test_departures_become_rows_messages_and_alerts(self, flights):
        flights.produce("departures", [departure(5, 10.0, flight=1), departure(55, 200.0, flight=2, tailnum=None)])
        flights.wait()
        (row,) = flights.view("delay_by_hour")
        assert (row["origin"], row["hour_start"], row["flights"], row["mean_delay"]) == ("JFK", AT, 2, 105.0)
        assert {(m["flight"], m["model"]) for m in flights.topic("departures_enriched")} == {(1, "737-800"), (2, None)}
        assert [m["flight"] for m in flights.topic("late_departures")] == [2]

    def test_a_change_in_the_database_is_seen_by_later_departures(self, flights):
        before = len(flights.topic("planes"))
        with flights.database("ops") as connection:
            connection.execute("UPDATE planes SET model = '737-900' WHERE tailnum = 'N1'")
        deadline = time.monotonic() + 20
        while len(flights.topic("planes")) == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        flights.produce("departures", [departure(56, 1.0, flight=3)])
        flights.wait()
        assert {m["flight"]: m["model"] for m in flights.topic("departures_enriched")}[3] == "737-900"

    def test_malformed_events_go_to_the_dead_letters_once_and_stop_nothing(self, flights):
        flights.produce("departures", [b"not json", b'{"carrier": 1}', departure(57, 1.0, flight=4)])
        flights.produce("arrivals", [b"[]"])
        flights.wait()
        letters = flights.topic("flights.dead_letters")
        assert len(letters) == 3
        assert {(m["topic"], m["value"]) for m in letters} == {
            ("arrivals", "[]"),
            ("departures", "not json"),
            ("departures", '{"carrier": 1}'),
        }
        assert 4 in {m["flight"] for m in flights.topic("departures_enriched")}
