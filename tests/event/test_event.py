from datetime import UTC, datetime, timedelta

import msgspec
import pytest

import millstream as ms
from millstream.app.inputs import Topic
from millstream.event import Field, decode, duration, encode, fields
from millstream.settings import MillstreamError

AT = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


class Departure(ms.Event):
    origin: str
    delay: float
    at: datetime
    tailnum: str | None
    stops: list[str] | None


def test_an_event_survives_its_json_form():
    event = Departure(origin="JFK", delay=3.5, at=AT, tailnum="N1", stops=["ORD"])
    assert decode(Departure, encode(event)) == event


def test_unknown_fields_are_ignored_and_optional_ones_may_be_absent():
    assert decode(Departure, b'{"origin":"JFK","delay":1,"at":"2013-01-01T10:15:00Z","new":1}') == Departure(
        origin="JFK", delay=1.0, at=AT
    )


def test_events_are_immutable():
    with pytest.raises(AttributeError):
        Departure(origin="JFK", delay=1, at=AT).origin = "LGA"


def test_naive_times_are_refused_when_made_and_when_read():
    with pytest.raises(ValueError, match=r"Departure\.at: expected a datetime with a time zone, got datetime"):
        Departure(origin="JFK", delay=1, at=datetime(2013, 1, 1))
    with pytest.raises(msgspec.ValidationError, match="time zone"):
        decode(Departure, b'{"origin":"JFK","delay":1,"at":"2013-01-01T10:15:00"}')


@pytest.mark.parametrize(
    "data", [b'{"origin":1,"delay":1,"at":"2013-01-01T10:15:00Z"}', b'{"origin":"J"}', b"[]", b"{", b"\xff"]
)
def test_malformed_data_is_refused(data):
    with pytest.raises((ValueError, msgspec.DecodeError)):
        decode(Departure, data)


def test_fields():
    assert fields(Departure) == (
        Field("origin", "string"),
        Field("delay", "double"),
        Field("at", "timestamp"),
        Field("tailnum", "string", True),
        Field("stops", "json", True),
    )


def test_a_default_other_than_none_is_refused_since_spark_would_not_know_it():
    class Counted(ms.Event):
        n: int = 0

    with pytest.raises(MillstreamError, match=r"Counted\.n: .*\| None without a default"):
        fields(Counted)


def test_fields_are_those_of_an_event():
    with pytest.raises(MillstreamError, match="expected a subclass"):
        fields(dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 hours", timedelta(hours=2)),
        ("1 day 12 hours", timedelta(hours=36)),
        ("90s", timedelta(seconds=90)),
        ("500 ms", timedelta(milliseconds=500)),
        (timedelta(seconds=1), timedelta(seconds=1)),
    ],
)
def test_duration(text, expected):
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "2 parsecs", "0 hours", "-1 hour", "1 hour x", timedelta(0)])
def test_durations_that_cannot_be_read(text):
    with pytest.raises(MillstreamError, match="expected a"):
        duration(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "topic name"),
        ({"key": "nope"}, "key names the field 'nope'"),
        ({"event_time": "origin"}, "must be a datetime"),
        ({"partitions": 0}, "partitions must be 1 to"),
    ],
)
def test_topics_are_checked_when_declared(changes, message):
    with pytest.raises(MillstreamError, match=message):
        Topic(**({"name": "departures", "event": Departure} | changes))
