"""Every malformed event is one: none of them can be read as the event it was made from."""

import msgspec
import pytest
from demo.events import START, Arrival, Departure

from millstream.demo import malformed
from millstream.demo.data import at
from millstream.event import decode, encode

GOOD = {
    "departed_at": Departure(
        carrier="UA",
        flight=1,
        origin="EWR",
        dest="IAH",
        tailnum="N1",
        scheduled_at=at(START),
        departed_at=at(START),
        delay=1.0,
    ),
    "arrived_at": Arrival(
        carrier="UA",
        flight=1,
        origin="EWR",
        dest="IAH",
        tailnum="N1",
        departed_at=at(START),
        arrived_at=at(START + 60),
        delay=None,
    ),
}


@pytest.mark.parametrize("time", GOOD)
@pytest.mark.parametrize("kind", malformed.KINDS)
def test_it_cannot_be_read(kind, time):
    good = encode(GOOD[time])
    bad = malformed.KINDS[kind](good, time)
    assert bad != good
    with pytest.raises((msgspec.DecodeError, ValueError)):
        decode(type(GOOD[time]), bad)
