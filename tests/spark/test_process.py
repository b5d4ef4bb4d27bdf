"""What stands between a child process and its room."""

from types import SimpleNamespace

import pytest

from millstream.settings import Kafka, MillstreamError, Settings
from millstream.spark import process, replay

APP = SimpleNamespace(name="flights")
TO = {("departures", 0): 7}


@pytest.fixture(autouse=True)
def log(monkeypatch):
    """A log whose topic begins at 5."""
    monkeypatch.setattr(process, "topic_names", lambda kafka: ["departures"])
    monkeypatch.setattr(process, "start_offsets", lambda kafka, topics: {(topic, 0): 5 for topic in topics})


def test_queries_are_moved_before_spark_starts_and_their_groups_with_them(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(process, "commit", lambda kafka, group, position: asked.append((group, position)))
    replay.mark(tmp_path, "flights", "late", TO)
    settings = Settings(data=tmp_path, kafka=Kafka("a:1"))
    process.move_queries(APP, settings)
    process.move_queries(APP, settings)
    assert asked == [("flights.late", TO)]
    assert (replay.checkpoint(Settings(data=tmp_path), "flights", "late") / "sources").exists()


def test_a_position_that_cannot_be_committed_does_not_stop_the_query(tmp_path, monkeypatch, caplog):
    def refuse(kafka, group, position):
        raise MillstreamError("no broker answers")

    monkeypatch.setattr(process, "commit", refuse)
    replay.mark(tmp_path, "flights", "late", TO)
    process.move_queries(APP, Settings(data=tmp_path, kafka=Kafka("a:1")))
    assert "its position could not be committed: no broker answers" in caplog.text
    assert replay.obey(Settings(data=tmp_path), "flights") == {}
