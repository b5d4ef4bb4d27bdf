"""Status: the latest facts always arrive, rarely, and nobody waits for them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.app import names
from millstream.client.producer import producer
from millstream.monitor import status
from millstream.monitor.status import EVERY_S, MAX_KEYS, REFRESH_S, Board, Follower, Reporter, forget, read
from millstream.settings import Kafka, MillstreamError
from tests.brokers import fresh, running_broker, wait_until

KEY = ("query", "late")


def test_the_first_facts_are_due_at_once_and_the_next_after_a_second():
    board = Board()
    assert board.note(KEY, {"n": 1})
    assert board.due(10.0) == {KEY: {"n": 1}}
    board.sent(KEY, {"n": 1}, 10.0)
    assert board.note(KEY, {"n": 2})
    assert board.due(10.5) == {}
    assert board.wait_s(10.5) == EVERY_S - 0.5
    assert board.due(11.0) == {KEY: {"n": 2}}


def test_unchanged_facts_are_not_sent_again_until_they_must_be_refreshed():
    board = Board()
    board.note(KEY, {"n": 1})
    board.sent(KEY, {"n": 1}, 0.0)
    assert not board.note(KEY, {"n": 1})
    assert board.due(REFRESH_S - 1) == {}
    assert board.due(REFRESH_S) == {KEY: {"n": 1}}


def test_facts_that_change_back_before_they_were_sent():
    board = Board()
    board.note(KEY, {"n": 1})
    board.sent(KEY, {"n": 1}, 0.0)
    board.note(KEY, {"n": 2})
    board.note(KEY, {"n": 1})
    assert board.due(1.0) == {KEY: {"n": 1}}


def test_what_was_not_acknowledged_stays_due():
    board = Board()
    board.note(KEY, {"n": 1})
    board.sent(KEY, None, 0.0)
    assert board.due(0.1) == {KEY: {"n": 1}}


def test_a_hurry_ends_when_everything_is_sent():
    board = Board()
    board.note(KEY, {"n": 1})
    board.sent(KEY, {"n": 1}, 0.0)
    board.note(KEY, {"n": 2})
    board.hurry()
    assert board.due(0.1) == {KEY: {"n": 2}}
    board.sent(KEY, {"n": 2}, 0.1)
    board.note(KEY, {"n": 3})
    assert board.due(0.2) == {}


def test_names_are_bounded():
    board = Board()
    for n in range(MAX_KEYS):
        board.note(("query", str(n)), {})
    with pytest.raises(MillstreamError, match="expected at most"):
        board.note(("query", "one more"), {})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(0, 0.7), st.booleans()), max_size=60))
def test_the_last_facts_arrive_and_never_two_within_a_second(script):
    """Any sequence of reports, with a log that loses some: (name, value, seconds until the next, whether it is acknowledged)."""
    board, now, last, arrived, times = Board(), 0.0, {}, {}, {}

    def send(acknowledged: bool) -> None:
        for key, facts in board.due(now).items():
            if acknowledged:
                assert now - times.get(key, -EVERY_S) >= EVERY_S - 1e-9
                arrived[key], times[key] = facts, now
            board.sent(key, facts if acknowledged else None, now)

    for name, value, pause, acknowledged in script:
        key = ("query", str(name))
        board.note(key, {"value": value})
        last[key] = {"value": value}
        send(acknowledged)
        now += pause
    for _ in range(3):
        now += EVERY_S
        send(True)
    assert arrived == last
    assert not board.pending


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("log") / "data") as address:
        yield address


@pytest.mark.system
def test_a_follower_sees_what_is_reported(kafka):
    app, seen = fresh("app"), []
    with Reporter(kafka, app) as reporter:
        reporter.report("capture", "ops", state="running")
        assert reporter.flush()
        with Follower(kafka, app) as follower, Follower(kafka) as everybody:
            assert follower.ready.wait(30)
            assert follower.latest[("capture", "ops")]["state"] == "running"
            unsubscribe = follower.subscribe(lambda key, facts: seen.append((key, facts["n"])))
            for n in range(50):
                reporter.report("query", "late", n=n)
            wait_until(lambda: follower.latest.get(("query", "late"), {}).get("n") == 49, "the last facts are there")
            wait_until(lambda: ("query", f"{app}/late") in everybody.latest, "the follower of all sees them too")
            assert len(seen) <= 2, "fifty reports in an instant are at most two messages"
            unsubscribe()
    facts = read(kafka, app)
    assert facts.keys() == {("capture", "ops"), ("query", "late")}
    assert facts["query", "late"]["app"] == app
    assert facts["query", "late"]["kind"] == "query"


@pytest.mark.system
def test_a_tombstone_makes_it_forgotten(kafka):
    app = fresh("app")
    with Reporter(kafka, app) as reporter:
        reporter.report("query", "late", n=1)
    with Follower(kafka, app) as follower:
        wait_until(lambda: follower.latest, "the facts are there")
        client = producer(kafka)
        client.produce(names.STATUS, key=f"{app}/query/late", value=None)
        client.produce(names.STATUS, key=f"{app}/query/odd", value=b"not json")
        client.produce(names.STATUS, key=b"\xff", value=b"{}")
        client.flush(30)
        wait_until(lambda: not follower.latest, "the facts are forgotten")
    assert read(kafka, app) == {}


@pytest.mark.system
def test_what_an_earlier_run_left_behind_is_forgotten(kafka):
    app, other = fresh("app"), fresh("other")
    with Reporter(kafka, app) as reporter, Reporter(kafka, other) as another:
        for kind in ("query", "process", "replay"):
            reporter.report(kind, "old", state="running")
        another.report("query", "old", state="running")
    began = time.time()
    with Reporter(kafka, app) as reporter:
        reporter.report("query", "new", state="running")
    assert sorted(forget(kafka, app, began)) == [("process", "old"), ("query", "old")]
    assert read(kafka, app).keys() == {("query", "new"), ("replay", "old")}
    assert read(kafka, other).keys() == {("query", "old")}
    assert forget(kafka, app, began) == []


@pytest.mark.system
def test_reporting_never_waits_for_a_log_that_is_away(monkeypatch):
    monkeypatch.setattr(status, "SEND_S", 0.2)
    reporter = Reporter(Kafka("127.0.0.1:1"), "app")
    for n in range(1000):
        reporter.report("query", "late", n=n)
    assert not reporter.flush(0.1)
    reporter.close(0.1)
