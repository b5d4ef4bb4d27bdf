"""The sink against a real log: what is stored, what is refused, what a topic holds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream.capture.sink import MAX_MESSAGE, KafkaSink
from millstream.settings import Kafka, MillstreamError
from tests.brokers import fresh
from tests.capture.conftest import settings

pytestmark = pytest.mark.system


def go_on() -> bool:
    return True


@pytest.fixture
def sink(kafka: Kafka, tmp_path: Path) -> KafkaSink:
    """A sink."""
    return KafkaSink(kafka, tmp_path)


def test_ends_of_what_was_written(sink: KafkaSink) -> None:
    one, other = fresh("one"), fresh("other")
    identities = sink.prepare([one, other])
    assert sink.prepare([one])[one] == identities[one] != identities[other]
    assert sink.stored() == {} and sink.ends(one) == {}
    for i in range(3):
        sink.send(one, b"%d" % i, b"x")
    assert sink.flush(go_on)
    stored = sink.stored()
    assert list(stored) == [one] and sum(stored[one].values()) == 3
    assert {p: end for p, end in stored[one].items() if end} == sink.ends(one)
    assert sink.stored() == {}  # nothing since


def test_keys_that_a_topic_holds(sink: KafkaSink) -> None:
    topic = fresh("keys")
    sink.prepare([topic])
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"b", None)):
        sink.send(topic, key, value)
    assert sink.flush(go_on)
    before = sink.ends(topic)
    assert sorted(sink.live_keys(topic, before, go_on)) == [b"a", b"c"]
    sink.send(topic, b"c", b"2")
    assert sink.flush(go_on)
    assert list(sink.live_keys(topic, before, go_on)) == [b"a"]  # c has a newer message
    assert list(sink.live_keys(topic, {}, go_on)) == []


def test_reading_ends_when_it_is_to_stop(sink: KafkaSink) -> None:
    topic = fresh("keys")
    sink.prepare([topic])
    sink.send(topic, b"a", b"1")
    assert sink.flush(go_on)
    with pytest.raises(MillstreamError, match="stopped while reading"):
        list(sink.live_keys(topic, sink.ends(topic), lambda: False))


def test_rows_that_the_log_does_not_take_are_said_and_others_are_taken(sink: KafkaSink, kafka: Kafka) -> None:
    topic = fresh("large")
    sink.prepare([topic])
    sink.send(topic, b"most", b"x" * (MAX_MESSAGE - 1000))
    assert sink.flush(go_on)
    refused: dict[str, str] = {}
    sink.attend(lambda: None, refused.__setitem__)
    sink.send(topic, b"much", b"x" * (MAX_MESSAGE + 1))
    assert "does not take the row with key much of 16777217 bytes" in refused.pop(topic)
    settings(kafka, topic, {"max.message.bytes": "100000"})
    other = fresh("other")
    sink.prepare([other])
    sink.send(topic, b"more", random.randbytes(200_000))
    sink.send(other, b"little", b"x")
    assert sink.flush(go_on) and sum(sink.ends(other).values()) == 1
    assert "the log refuses the row with key more of 200000 bytes" in refused[topic]
    assert f"Set max.message.bytes={MAX_MESSAGE}" in refused[topic]
    for size in (10, 20):
        sink.send(topic, b"less", b"x" * size)
    assert sink.flush(go_on) and sum(sink.ends(topic).values()) == 3
