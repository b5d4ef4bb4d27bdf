"""Alerts and dead letters: what a message becomes on the page, and which partitions are read from where."""

import base64
import json
import threading

import pytest

from millstream.client.admin import TopicFacts
from millstream.serve import letters as module
from millstream.serve.activity import Activity
from millstream.serve.letters import KEPT, Letters, alert, dead_letter
from millstream.serve.positions import Reading
from millstream.serve.state import Letter
from millstream.settings import Kafka


class Message:
    """What confluent_kafka.Message offers, made by hand."""

    def __init__(self, topic, offset, value, key=b"k", headers=None, at=5_000, partition=0):
        self._values = {
            "topic": topic, "partition": partition, "offset": offset, "value": value, "key": key,
            "headers": headers, "timestamp": (1, at), "error": None,
        }  # fmt: skip

    def __getattr__(self, name):
        return lambda: self._values[name]


class Consumer:
    """Records what is assigned and hands out messages."""

    def __init__(self):
        self.assigned = []
        self.messages = []

    def assign(self, partitions):
        self.assigned.append({(p.topic, p.partition): p.offset for p in partitions})

    def consume(self, number, timeout):
        taken, self.messages = self.messages[:number], self.messages[number:]
        return taken


class Positions:
    def __init__(self):
        self.reading = Reading()

    def see(self, at, **ends):
        """The log as it is at `at`: the end of the one partition of each topic, and 0 as its start."""
        names = {name.replace("__", "."): end for name, end in ends.items()}
        topics = {name: TopicFacts(name, {0: 0}, {0: end}) for name, end in names.items()}
        self.reading = Reading(at=at, topics=topics, ends={(name, 0): end for name, end in names.items()})


@pytest.fixture
def positions():
    return Positions()


@pytest.fixture
def looking():
    activity = Activity(threading.Event())
    activity.watch(+1)
    return activity


@pytest.fixture
def letters(positions, looking):
    return Letters(Kafka("127.0.0.1:1"), ["late"], "app.dead", positions, looking)


def test_an_alert_shows_its_fields_and_its_cause():
    letter = alert(Message("late", 7, b'{"delay": 130}', headers=[("other", b"x"), ("origin", b"departures-0-9")]))
    assert (letter.value, letter.origin, letter.at, letter.key) == ({"delay": 130}, "departures-0-9", 5.0, "k")
    assert alert(Message("late", 7, b"{}", headers=None)).origin is None


@pytest.mark.parametrize(
    ("value", "expected"), [(b"text", "text"), (b"\xff", "�"), (b"[1, 2]", "[1, 2]"), (None, None), (b"", "")]
)
def test_what_is_no_object_is_shown_as_text(value, expected):
    assert alert(Message("late", 7, value)).value == expected


def test_a_huge_value_is_cut_before_it_is_kept(letters, positions):
    huge = json.dumps({"reason": "too long", "value": "x" * 1_000_000}).encode()
    assert len(alert(Message("late", 7, huge)).value) == module.MAX_VALUE
    consumer = Consumer()
    positions.see(1.0, late=1, app__dead=1)
    consumer.messages = [Message("late", 0, huge), Message("app.dead", 0, huge)]
    letters._step(consumer)
    [kept] = letters.dead_letters().newest
    assert (kept.reason, len(kept.value)) == ("too long", module.MAX_VALUE)
    assert all(isinstance(entry[3], Letter) for entries in letters._kept.values() for entry in entries)


def test_a_dead_letter_shows_why_from_where_and_what_it_was():
    facts = {"reason": "not JSON", "at": "2013-01-01T00:00:01+00:00", "value": "{half"}
    letter = dead_letter(Message("app.dead", 1, json.dumps(facts).encode(), key=b"departures-0-9"))
    assert (letter.reason, letter.origin, letter.value) == ("not JSON", "departures-0-9", "{half")
    assert letter.at == 1_356_998_401
    raw = facts | {"value": base64.b64encode(b"\xff\x00a").decode(), "encoding": "base64"}
    assert dead_letter(Message("app.dead", 1, json.dumps(raw).encode())).value == r"\xff\x00a"
    assert dead_letter(Message("app.dead", 1, b"not even JSON")).reason == "unknown"


def test_alerts_are_read_from_their_newest_and_dead_letters_from_the_first(letters, positions):
    consumer = Consumer()
    positions.see(1.0, late=10_000, app__dead=10_000)
    letters._step(consumer)
    assert consumer.assigned == [{("late", 0): 10_000 - KEPT, ("app.dead", 0): 0}]


def test_what_was_read_stays_and_is_newest_first(letters, positions):
    consumer = Consumer()
    positions.see(1.0, late=2, app__dead=0)
    consumer.messages = [Message("late", 0, b'{"n": 0}', at=1000), Message("late", 1, b'{"n": 1}', at=2000)]
    letters._step(consumer)
    letters._step(consumer)
    assert len(consumer.assigned) == 1
    assert [a.value["n"] for a in letters.alerts()] == [1, 0]


def test_an_older_reading_does_not_begin_again(letters, positions):
    consumer = Consumer()
    positions.see(1.0, late=1, app__dead=0)
    consumer.messages = [Message("late", offset, b"{}") for offset in range(5)]
    letters._step(consumer)
    letters._step(consumer)
    assert len(consumer.assigned) == 1


def test_a_topic_made_anew_is_read_from_its_start(letters, positions):
    consumer = Consumer()
    positions.see(1.0, late=0, app__dead=0)
    consumer.messages = [Message("late", 4_999, b"{}")]
    letters._step(consumer)
    positions.see(1e12, late=3, app__dead=0)
    letters._step(consumer)
    assert consumer.assigned[-1]["late", 0] == 0


def test_a_reader_far_behind_jumps_to_the_newest_alerts(letters, positions):
    consumer = Consumer()
    positions.see(1.0, late=10, app__dead=10)
    letters._step(consumer)
    positions.see(2.0, late=1_000_000, app__dead=1_000_000)
    letters._step(consumer)
    assert consumer.assigned[-1] == {("late", 0): 1_000_000 - KEPT, ("app.dead", 0): 0}


def test_while_nobody_looks_only_dead_letters_are_read(positions):
    letters = Letters(Kafka("127.0.0.1:1"), ["late"], "app.dead", positions, Activity(threading.Event()))
    consumer = Consumer()
    positions.see(1.0, late=10, app__dead=10)
    letters._step(consumer)
    assert consumer.assigned == [{("app.dead", 0): 0}]


def test_dead_letters_are_counted_once_by_their_origin(letters, positions, monkeypatch):
    consumer = Consumer()
    positions.see(1.0, app__dead=9)
    consumer.messages = [Message("app.dead", i, b"{}", key=f"departures-0-{i % 3}".encode()) for i in range(9)]
    consumer.messages.append(Message("app.dead", 9, None, key=b"departures-0-99"))
    letters._step(consumer)
    assert (letters.dead_letters().distinct, letters.dead_letters().at_least) == (3, False)
    monkeypatch.setattr(module, "MAX_DISTINCT", 3)
    consumer.messages = [Message("app.dead", 10, b"{}", key=b"departures-0-100")]
    letters._step(consumer)
    assert (letters.dead_letters().distinct, letters.dead_letters().at_least) == (3, True)
