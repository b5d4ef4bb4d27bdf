"""What a plan would create or change, by values."""

from millstream.app.graph import Graph
from millstream.app.outputs import POSTGRESQL
from millstream.app.query import StoredTable
from millstream.app.topics import NeededTopic
from millstream.client.admin import TopicFacts
from millstream.run.compare import Change, compare, compare_topics
from millstream.settings import Kafka, Settings

DELAYS = StoredTable(POSTGRESQL, "flights", "delays")


def facts(name, partitions=2, **config):
    offsets = dict.fromkeys(range(partitions), 0)
    return {name: TopicFacts(name, offsets, offsets, {k.replace("_", "."): v for k, v in config.items()})}


def only(plan, there):
    (change,) = compare_topics([plan], there)
    return change


def test_a_missing_topic_would_be_created():
    plan = NeededTopic("planes", 1, {"cleanup.policy": "compact"})
    assert only(plan, {}) == Change("topic", "planes", "create", "1 partition, cleanup.policy=compact")


def test_nothing_to_compare_with():
    assert only(NeededTopic("departures", 2), None) == Change("topic", "departures", "unknown", "2 partitions")


def test_a_topic_as_declared_is_kept():
    plan = NeededTopic("status", 2, {"cleanup.policy": "compact,delete"})
    assert only(plan, facts("status", cleanup_policy="delete, compact", retention_ms="5")).state == "kept"


def test_differences_are_named():
    plan = NeededTopic("planes", 2, {"cleanup.policy": "compact", "retention.ms": "10"})
    change = only(plan, facts("planes", 4, retention_ms="20"))
    assert change.state == "differs"
    assert change.detail == (
        "4 partitions, declared 2; cleanup.policy=the default, declared compact; retention.ms=20, declared 10"
    )


def test_nothing_runs_and_nothing_is_touched(tmp_path):
    planned = Graph("flights", (NeededTopic("departures", 2),), (DELAYS,), databases=("millstream",))
    compared = compare(planned, Settings(data=tmp_path / "data"))
    assert compared.log.problem == compared.store.problem == "not running"
    assert [(c.kind, c.name, c.state) for c in compared.changes] == [
        ("topic", "departures", "unknown"),
        ("table", "flights.delays", "unknown"),
    ]
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_reached_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.run.compare._PATIENCE", 0.1)
    planned = Graph("flights", (NeededTopic("departures", 2),), (DELAYS,))
    settings = Settings(data=tmp_path, kafka=Kafka("127.0.0.1:1"), postgres="host=127.0.0.1 port=1 dbname=x")
    compared = compare(planned, settings)
    assert "127.0.0.1:1" in compared.log.problem and "Connection refused" in compared.store.problem
    assert {c.state for c in compared.changes} == {"unknown"}
