"""The messages of the demo in their order: what departs and lands when, malformed ones between, each with its offset.

The sequence is a pure function of the flights, the seed, the number of malformed events and the number of partitions. A replay
that was interrupted therefore knows which message belongs at which offset, and the summary knows what to expect there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

from millstream.demo import malformed
from millstream.demo.data import Flight, at
from millstream.demo.partitioner import partition_of, partition_without_key
from millstream.event import Event, encode

DEPARTURES = "departures"
ARRIVALS = "arrivals"
TOPICS = (DEPARTURES, ARRIVALS)
EVENT_TIMES = {DEPARTURES: "departed_at", ARRIVALS: "arrived_at"}

Make = Callable[..., Event]


class Slot(NamedTuple):
    """A message's place: the number-th of all, from 0, due at `minute` (since 1970, UTC), at `offset` of its partition.

    bad: the kind of malformed event (of malformed.KINDS), or None for a good one.
    """

    number: int
    minute: int
    topic: str
    partition: int
    offset: int
    flight: Flight
    bad: str | None


@dataclass(frozen=True)
class Replay:
    """The whole input of a run.

    flights: in the order of departure. partitions: the number of partitions of each topic.
    departure, arrival: the application's event classes, so that what is sent is what it declares.
    """

    flights: Sequence[Flight]
    departure: Make
    arrival: Make
    partitions: Mapping[str, int]
    bad: int = malformed.DEFAULT
    seed: int = 0

    @cached_property
    def events(self) -> int:
        """The number of good events: departures and recorded arrivals."""
        return len(self.flights) + sum(f.arrived is not None for f in self.flights)

    @cached_property
    def total(self) -> int:
        """The number of messages, malformed ones included."""
        return self.events + self.bad

    @cached_property
    def half(self) -> int:
        """The number of the first message of the second half, before which the plane is changed."""
        return self.total // 2

    def slots(self) -> Iterator[Slot]:
        """Yield every message's place, in event time; among equal times departures first, in the order of the flights."""
        offsets = {topic: [0] * self.partitions[topic] for topic in TOPICS}
        places = self._bad_places()
        kinds = list(malformed.KINDS)
        number, bad = 0, 0
        for event, (minute, topic, flight) in enumerate(in_event_time(self.flights)):
            wrong: list[tuple[str, str]] = []
            while bad < len(places) and places[bad] == event:
                again, kind = divmod(bad, len(kinds))
                wrong.append((TOPICS[(kind + again) % 2], kinds[kind]))
                bad += 1
            for where, malformation in (*wrong, (topic, None)):
                partition = self._partition(where, flight)
                yield Slot(number, minute, where, partition, offsets[where][partition], flight, malformation)
                offsets[where][partition] += 1
                number += 1

    def key(self, slot: Slot) -> bytes | None:
        """Return the message's key: the aircraft, or None when it was not recorded."""
        return None if slot.flight.tailnum is None else slot.flight.tailnum.encode()

    def value(self, slot: Slot) -> bytes:
        """Return the message's value: the event as JSON, or what is wrong instead of it."""
        f = slot.flight
        if slot.topic == DEPARTURES:
            event = self.departure(
                carrier=f.carrier,
                flight=f.flight,
                origin=f.origin,
                dest=f.dest,
                tailnum=f.tailnum,
                scheduled_at=at(f.scheduled),
                departed_at=at(f.departed),
                delay=float(f.departure_delay),
            )
        else:
            event = self.arrival(
                carrier=f.carrier,
                flight=f.flight,
                origin=f.origin,
                dest=f.dest,
                tailnum=f.tailnum,
                departed_at=at(f.departed),
                arrived_at=at(slot.minute if f.arrived is None else f.arrived),
                delay=None if f.arrival_delay is None else float(f.arrival_delay),
            )
        good = encode(event)
        return good if slot.bad is None else malformed.KINDS[slot.bad](good, EVENT_TIMES[slot.topic])

    def _partition(self, topic: str, flight: Flight) -> int:
        if flight.tailnum is None:
            return partition_without_key(flight.identity, self.partitions[topic])
        return partition_of(flight.tailnum.encode(), self.partitions[topic])

    def _bad_places(self) -> list[int]:
        """Return before which events the malformed ones come: spread over the whole input, one at random in each stretch."""
        events, chance = self.events, random.Random(self.seed)
        return [
            (k * events // self.bad) + chance.randrange(max(1, (k + 1) * events // self.bad - k * events // self.bad))
            for k in range(self.bad)
            if events
        ]


def in_event_time(flights: Iterable[Flight]) -> Iterator[tuple[int, str, Flight]]:
    """Yield (minute, topic, flight) for each departure and each recorded arrival; memory holds only what is in the air."""
    airborne: list[tuple[int, int, Flight]] = []
    for order, flight in enumerate(flights):
        while airborne and airborne[0][0] < flight.departed:
            minute, _, landed = heappop(airborne)
            yield minute, ARRIVALS, landed
        yield flight.departed, DEPARTURES, flight
        if flight.arrived is not None:
            heappush(airborne, (flight.arrived, order, flight))
    while airborne:
        minute, _, landed = heappop(airborne)
        yield minute, ARRIVALS, landed


def busiest_plane(replay: Replay, planes: Iterable[str]) -> str:
    """Return the aircraft of `planes` that departs most often in the second half of the input; of several the first by name."""
    known, counts = set(planes), dict[str, int]()
    for slot in replay.slots():
        tailnum = slot.flight.tailnum
        if slot.number >= replay.half and slot.topic == DEPARTURES and slot.bad is None and tailnum in known:
            assert tailnum is not None
            counts[tailnum] = counts.get(tailnum, 0) + 1
    if not counts:
        raise LookupError("no departure in the second half has a known plane")
    return min(counts, key=lambda tailnum: (-counts[tailnum], tailnum))
