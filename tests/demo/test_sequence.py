"""The sequence of messages: in event time, complete, the same every time, malformed ones of every kind in both topics."""

import msgspec
import pytest
from demo.events import START, Arrival, Departure, few, flights, replays
from hypothesis import given

from millstream.demo import malformed
from millstream.demo.data import Flight
from millstream.demo.sequence import ARRIVALS, DEPARTURES, TOPICS, Replay, busiest_plane
from millstream.event import decode

PARTITIONS = {DEPARTURES: 2, ARRIVALS: 2}


def flight(number: int, departed: int, arrived: int | None, tailnum: str | None = "N1") -> Flight:
    return Flight("UA", number, "EWR", "IAH", tailnum, departed, departed, 0, arrived, 0)


def test_departures_and_arrivals_come_in_event_time_departures_first():
    first, second = flight(1, 100, 130), flight(2, 120, 125)
    third = flight(3, 130, None)
    replay = Replay([first, second, third], Departure, Arrival, PARTITIONS, bad=0)
    assert [(s.minute, s.topic, s.flight.flight) for s in replay.slots()] == [
        (100, DEPARTURES, 1),
        (120, DEPARTURES, 2),
        (125, ARRIVALS, 2),
        (130, DEPARTURES, 3),
        (130, ARRIVALS, 1),
    ]
    assert replay.total == 5


@few
@given(replays())
def test_every_event_is_there_once_in_order_and_offsets_count_up(replay):
    slots = list(replay.slots())
    good = [(s.topic, s.flight.flight) for s in slots if s.bad is None]
    assert sorted(good) == sorted(
        [(DEPARTURES, f.flight) for f in replay.flights]
        + [(ARRIVALS, f.flight) for f in replay.flights if f.arrived is not None]
    )
    assert [s.number for s in slots] == list(range(replay.total))
    assert [s.minute for s in slots] == sorted(s.minute for s in slots)
    ends = {}
    for slot in slots:
        where = slot.topic, slot.partition
        assert slot.offset == ends.get(where, 0)
        assert slot.partition < replay.partitions[slot.topic]
        ends[where] = slot.offset + 1


@few
@given(replays())
def test_the_sequence_is_a_pure_function(replay):
    again = Replay(replay.flights, Departure, Arrival, replay.partitions, replay.bad, replay.seed)
    assert [(s, replay.key(s), replay.value(s)) for s in replay.slots()] == [
        (s, again.key(s), again.value(s)) for s in again.slots()
    ]


@few
@given(flights())
def test_equal_aircraft_share_a_partition(some):
    replay = Replay(some, Departure, Arrival, PARTITIONS, bad=0)
    seen = {}
    for slot in replay.slots():
        if slot.flight.tailnum is None:
            assert replay.key(slot) is None
        else:
            assert replay.key(slot) == slot.flight.tailnum.encode()
            assert seen.setdefault((slot.topic, slot.flight.tailnum), slot.partition) == slot.partition


@few
@given(replays())
def test_good_messages_are_events_and_bad_ones_are_not(replay):
    for slot in replay.slots():
        value, event = replay.value(slot), Departure if slot.topic == DEPARTURES else Arrival
        if slot.bad is None:
            assert decode(event, value).flight == slot.flight.flight
        else:
            with pytest.raises((msgspec.DecodeError, ValueError)):
                decode(event, value)


def test_every_kind_of_malformed_event_is_in_both_topics_all_over_the_input():
    replay = Replay([flight(n, START + n, START + n + 60) for n in range(500)], Departure, Arrival, PARTITIONS)
    bad = [s for s in replay.slots() if s.bad is not None]
    assert sorted((s.bad, s.topic) for s in bad) == sorted((k, t) for k in malformed.KINDS for t in TOPICS)
    stretch = replay.total // len(bad)
    assert [s.number // (stretch + 1) for s in bad] == sorted(s.number // (stretch + 1) for s in bad)
    assert bad[0].number < 2 * stretch
    assert bad[-1].number > replay.total - 2 * stretch


def test_another_seed_places_them_elsewhere():
    some = [flight(n, START + n, START + n + 60) for n in range(500)]
    places = [
        [s.number for s in Replay(some, Departure, Arrival, PARTITIONS, seed=seed).slots() if s.bad]
        for seed in (0, 0, 1)
    ]
    assert places[0] == places[1] != places[2]


def test_the_plane_that_changes_is_the_busiest_known_one_of_the_second_half():
    some = [flight(n, n, None, "early") for n in range(10)]
    some += [
        flight(n, n, None, ("unknown", "unknown", "b", "a", "b", "a", "unknown", "c")[n % 8]) for n in range(10, 26)
    ]
    replay = Replay(some, Departure, Arrival, PARTITIONS, bad=0)
    assert busiest_plane(replay, ["early", "a", "b", "c"]) == "a"
    with pytest.raises(LookupError):
        busiest_plane(replay, ["nobody"])
