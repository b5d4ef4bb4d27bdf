"""Positions of queries: who puts one never waits, and the last one is committed in the end."""

import threading

import pytest

from millstream.settings import Kafka, Unreachable
from millstream.spark import commits
from millstream.spark.commits import Commits
from tests.brokers import wait_until

KAFKA = Kafka("a:1")


@pytest.fixture
def log(monkeypatch):
    """What was committed, by group; `away` while the log is, `held` while it takes its time."""

    class Log:
        def __init__(self):
            self.away = False
            self.held = threading.Event()
            self.taken = []

    log = Log()
    log.held.set()

    def commit(kafka, group, offsets):
        log.held.wait(10)
        if log.away:
            raise Unreachable("no broker answers")
        log.taken.append((group, offsets))

    monkeypatch.setattr(commits, "commit", commit)
    monkeypatch.setattr(commits, "RETRY_S", 0.01)
    return log


def test_a_position_is_committed_once(log):
    found = Commits(KAFKA, "app")
    for _ in range(3):
        found.put("q", {"t": {"0": 5}})
        wait_until(lambda: log.taken, "committed", 5)
    found.close()
    assert log.taken == [("app.q", {("t", 0): 5})]


def test_what_comes_meanwhile_replaces_what_waits(log):
    log.held.clear()
    found = Commits(KAFKA, "app")
    for offset in range(100):
        found.put("q", {"t": {"0": offset}})
    log.held.set()
    wait_until(lambda: log.taken and log.taken[-1] == ("app.q", {("t", 0): 99}), "the last one", 5)
    found.close()
    assert len(log.taken) <= 2


def test_a_log_that_is_away_gets_it_later(log):
    log.away = True
    found = Commits(KAFKA, "app")
    found.put("q", {"t": {"0": 5}})
    found.put("r", {"t": {"0": 6}})
    log.away = False
    wait_until(lambda: len(log.taken) == 2, "both", 5)
    found.close()


def test_the_end_does_not_wait_for_a_log_that_is_away(log, monkeypatch):
    monkeypatch.setattr(commits, "CLOSE_S", 0.1)
    log.held.clear()
    found = Commits(KAFKA, "app")
    found.put("q", {"t": {"0": 5}})
    found.close()
    assert log.taken == []
    log.held.set()
