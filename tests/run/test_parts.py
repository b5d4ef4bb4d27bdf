"""What stands between a child process and its room."""

from types import SimpleNamespace

import pytest

from millstream.client import admin, groups
from millstream.run import parts, replay
from millstream.settings import Kafka, MillstreamError, Settings

APP = SimpleNamespace(name="flights")
TO = {("departures", 0): 7}


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """A log whose topic begins at 5."""
    monkeypatch.setattr(admin, "topic_names", lambda kafka: ["departures"])
    monkeypatch.setattr(admin, "start_offsets", lambda kafka, topics: {(topic, 0): 5 for topic in topics})


def test_queries_are_moved_before_spark_starts_and_their_groups_with_them(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(groups, "commit", lambda kafka, group, position: asked.append((group, position)))
    replay.mark(tmp_path, "flights", "late", TO)
    settings = Settings(data=tmp_path, kafka=Kafka("a:1"))
    parts._replay(APP, settings)
    parts._replay(APP, settings)
    assert asked == [("flights.late", TO)]
    assert (replay.checkpoint(tmp_path, "flights", "late") / "sources").exists()


def test_a_position_that_cannot_be_committed_does_not_stop_the_query(tmp_path, monkeypatch, caplog):
    def refuse(kafka, group, position):
        raise MillstreamError("no broker answers")

    monkeypatch.setattr(groups, "commit", refuse)
    replay.mark(tmp_path, "flights", "late", TO)
    parts._replay(APP, Settings(data=tmp_path, kafka=Kafka("a:1")))
    assert "its position could not be committed: no broker answers" in caplog.text
    assert replay.obey(tmp_path, "flights") == {}
