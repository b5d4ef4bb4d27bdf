"""Small inputs for the tests: made-up flights, and event classes like those of flights.py, which would load pyspark."""

from datetime import datetime

from hypothesis import settings
from hypothesis import strategies as st

import millstream.event as ms
from millstream.demo.data import Flight
from millstream.demo.sequence import Replay


class Departure(ms.Event):
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    scheduled_at: datetime
    departed_at: datetime
    delay: float


class Arrival(ms.Event):
    carrier: str
    flight: int
    origin: str
    dest: str
    tailnum: str | None
    departed_at: datetime
    arrived_at: datetime
    delay: float | None


# Whole inputs are slow to draw; so many of them are enough to find what the tests are for.
few = settings(max_examples=40, deadline=None)

START = 22_617_257


@st.composite
def flights(draw, most=25):
    found = []
    departed = START
    for number in range(draw(st.integers(1, most))):
        departed += draw(st.integers(0, 90))
        delay = draw(st.integers(-20, 300))
        found.append(
            Flight(
                carrier=draw(st.sampled_from(["UA", "AA", "B6"])),
                flight=number,
                origin=draw(st.sampled_from(["EWR", "JFK", "LGA"])),
                dest="IAH",
                tailnum=draw(st.sampled_from([None, "N14228", "N24211", "N619AA", "N804JB", "N668DN"])),
                scheduled=departed - delay,
                departed=departed,
                departure_delay=delay,
                arrived=draw(st.one_of(st.none(), st.integers(departed + 1, departed + 900))),
                arrival_delay=draw(st.one_of(st.none(), st.integers(-60, 400))),
            )
        )
    return found


@st.composite
def replays(draw):
    partitions = {"departures": draw(st.integers(1, 3)), "arrivals": draw(st.integers(1, 3))}
    bad, seed = draw(st.integers(0, 40)), draw(st.integers(0, 3))
    return Replay(draw(flights()), Departure, Arrival, partitions, bad, seed)
