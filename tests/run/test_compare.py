"""What a plan would create or change, by values."""

import psycopg
import pytest

import millstream as ms
from millstream.app.graph import Graph, graph
from millstream.app.outputs import POSTGRESQL
from millstream.app.query import StoredTable
from millstream.app.topics import NeededTopic
from millstream.client.admin import TopicFacts
from millstream.postgresql.server import Server
from millstream.run.compare import Change, compare, compare_topics
from millstream.run.lock import Lock
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


def captured(settings, *tables):
    """What is found of captured tables of the database "ops"."""
    app = ms.App("shop")
    for table in tables:
        app.table(table, source=ms.postgres("ops", table=table))
    compared = compare(graph(app, settings), settings)
    return compared, {c.name: c for c in compared.changes if c.kind == "captured table"}


def test_tables_of_an_embedded_database_that_is_yet_to_be_made(tmp_path):
    compared, found = captured(Settings(data=tmp_path / "data"), "items")
    change = found["ops: public.items"]
    assert change.state == "refused" and not compared.sound
    assert change.detail == "there is no table public.items yet."
    assert "--fill ops=tables.sql" in compared.sources["ops"].advice
    assert compared.columns == {"items": change.detail}
    assert not (tmp_path / "data").exists()


def test_a_source_that_does_not_answer_is_said(tmp_path):
    settings = Settings(data=tmp_path, sources={"ops": "host=127.0.0.1 port=1 dbname=x"})
    compared, found = captured(settings, "items")
    assert found["ops: public.items"].state == "unknown" and not compared.sound
    assert "Connection refused" in compared.sources["ops"].problem


@pytest.mark.system
def test_captured_tables_are_looked_at_where_they_are(tmp_path):
    with Server(tmp_path / "data" / "postgres") as server:
        address = server.database("ops")
        with psycopg.connect(address) as connection:
            connection.execute(
                "CREATE TABLE items (item text PRIMARY KEY, price numeric(10, 2)); CREATE TABLE bare (n integer)"
            )
        given, found = captured(Settings(data=tmp_path / "other", sources={"ops": address}), "items", "bare", "absent")
        assert {name: c.state for name, c in found.items()} == {
            "ops: public.items": "kept",
            "ops: public.bare": "refused",
            "ops: public.absent": "refused",
        }
        assert "has no primary key" in found["ops: public.bare"].detail
        assert "has no table public.absent" in found["ops: public.absent"].detail
        assert not given.sources["ops"].advice  # it is not ours to fill
        assert [c["name"] for c in given.columns["items"]["columns"]] == ["item", "price"]
    # The same database as an embedded one that has ended: started for a moment, and gone again.
    ended, found = captured(Settings(data=tmp_path / "data"), "items", "absent")
    assert found["ops: public.items"].state == "kept"
    assert "has no table public.absent." in found["ops: public.absent"].detail
    assert "--fill ops=tables.sql" in ended.sources["ops"].advice
    assert ended.columns["items"] == given.columns["items"]
    Lock(tmp_path / "data").release()
    held = Lock(tmp_path / "data")  # something is starting there
    try:
        busy, found = captured(Settings(data=tmp_path / "data"), "items")
        assert found["ops: public.items"].state == "unknown" and "is in use" in busy.sources["ops"].problem
    finally:
        held.release()
