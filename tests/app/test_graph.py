"""What running an application means, by values."""

import json
from datetime import datetime
from pathlib import Path

import pytest

import millstream as ms
from millstream.app.graph import describe, graph
from millstream.app.topics import NeededTopic
from millstream.settings import Kafka, MillstreamError, Settings

EMBEDDED = Settings(data=Path("/data"))
COMPACT = {"cleanup.policy": "compact"}


class Departure(ms.Event):
    tailnum: str | None
    departed_at: datetime


def application(**config):
    app = ms.App("flights")
    departures = app.topic(
        "departures", Departure, key="tailnum", event_time="departed_at", partitions=4, config=config
    )
    planes = app.table("planes", source=ms.postgres("ops", table="planes"))
    airlines = app.table("airlines", source=ms.postgres("ops", table="airlines"))
    prices = app.table("prices", source=ms.postgres("shop", table="prices"))
    app.view(departures, key="tailnum", name="delays")(lambda d: d)
    app.stream(departures, planes, airlines, prices, to="enriched", name="enriching")(lambda d, p, a, c: d)
    app.alert(departures, to="late", name="very_late")(lambda d: d)
    return app


def processes(app, settings, **more):
    return {p.name: p for p in graph(app, settings, **more).processes}


def test_everything_embedded():
    found = processes(application(), EMBEDDED)
    assert {name: set(p.needs) for name, p in found.items()} == {
        "broker": set(),
        "postgres": set(),
        "capture-ops": {"topics", "postgres"},
        "capture-shop": {"topics", "postgres"},
        "spark": {"topics", "postgres", "capture-ops", "capture-shop"},
        "deliver": {"topics"},
        "serve": {"topics", "postgres"},
    }
    assert found["broker"].arguments == ("--data", "/data/log", "--listen", "127.0.0.1:{port}", "--stop-with-stdin")
    assert found["capture-ops"].arguments == ("ops", "embedded")
    assert found["postgres"].arguments == ("millstream", "ops", "shop")
    assert found["spark"].prepare == "millstream.spark.jars"


def test_each_process_gets_only_the_addresses_that_it_needs():
    found = processes(application(), EMBEDDED)
    assert {name: p.gets for name, p in found.items()} == {
        "broker": set(),
        "postgres": set(),
        "capture-ops": {"kafka", "sources.ops"},
        "capture-shop": {"kafka", "sources.shop"},
        "spark": {"kafka", "spark", "postgres"},
        "deliver": {"kafka"},
        "serve": {"kafka", "postgres"},
    }


def test_the_drawing_has_a_box_for_each_thing_and_a_line_for_each_flow():
    found = graph(application(), EMBEDDED)
    assert [n.id for n in found.nodes] == [
        "source:ops", "topic:planes", "topic:airlines", "source:shop", "topic:prices", "topic:departures",
        "query:delays", "result:delays", "query:enriching", "topic:enriched", "query:very_late", "topic:late",
    ]  # fmt: skip
    assert ("source:ops", "topic:planes") in found.edges
    assert {s for s, t in found.edges if t == "query:enriching"} == {
        "topic:departures", "topic:planes", "topic:airlines", "topic:prices",
    }  # fmt: skip
    assert ("query:very_late", "topic:late") in found.edges and ("query:delays", "result:delays") in found.edges


def test_an_output_topic_that_another_query_reads_is_one_topic():
    app = ms.App("chain")
    first, second = app.topic("first", Departure), app.topic("second", Departure, partitions=3)
    app.stream(first, to=second, name="copy")(lambda d: d)
    app.view(second, key="tailnum", name="seen")(lambda d: d)
    found = graph(app, EMBEDDED)
    assert [t for t in found.topics if t.name == "second"] == [NeededTopic("second", 3, {}, "input")]
    assert {("topic:first", "query:copy"), ("query:copy", "topic:second"), ("topic:second", "query:seen")} <= set(
        found.edges
    )


def test_a_description_is_plain_values():
    description = describe(application())
    assert json.loads(json.dumps(description)) == description
    assert [(q["name"], q["kind"], q["topics"], q["tables"], q["group"]) for q in description["queries"]] == [
        ("delays", "view", [], ["delays"], "flights.delays"),
        ("enriching", "stream", ["enriched"], [], "flights.enriching"),
        ("very_late", "alert", ["late"], [], "flights.very_late"),
    ]


def test_what_has_an_address_does_not_run_here():
    settings = Settings(kafka=Kafka("kafka:9092"), postgres="host=db", sources={"ops": "host=a", "shop": "host=b"})
    found = processes(application(), settings)
    assert set(found) == {"capture-ops", "capture-shop", "spark", "deliver", "serve"}
    assert found["spark"].needs == {"topics", "capture-ops", "capture-shop"}
    assert found["serve"].needs == {"topics"}
    assert found["serve"].arguments[1:] == ("shared",)
    assert processes(application(), EMBEDDED)["serve"].arguments[1:] == ()


def test_what_an_application_needs_follows_from_its_processes():
    assert graph(application(), EMBEDDED).extras == ("postgresql", "spark")
    app = ms.App("bare")
    departures = app.topic("departures", Departure)
    assert graph(app, EMBEDDED).extras == ()
    app.stream(departures, to="out", name="copied")(lambda departures: departures)
    found = graph(app, EMBEDDED)
    assert found.extras == ("spark",)
    assert found.groups == ("bare.copied", "bare.dead_letters")
    app.table("planes", source=ms.postgres("ops", table="planes"))
    assert graph(app, Settings(sources={"ops": "host=a"})).extras == ("postgresql", "spark")


def test_postgres_runs_for_a_source_alone_or_for_the_views_alone():
    views_elsewhere = Settings(postgres="host=db", sources={"shop": "host=b"})
    assert graph(application(), views_elsewhere).databases == ("ops",)
    found = processes(application(), views_elsewhere)
    assert "postgres" in found["capture-ops"].needs
    assert "postgres" not in found["capture-shop"].needs | found["spark"].needs | found["serve"].needs
    sources_elsewhere = Settings(sources={"ops": "host=a", "shop": "host=b"})
    assert graph(application(), sources_elsewhere).databases == ("millstream",)


def test_an_application_without_queries_needs_no_spark():
    app = ms.App("empty")
    app.topic("departures", Departure)
    assert set(processes(app, EMBEDDED)) == {"broker", "serve"}


def test_addresses_that_the_user_asked_for_are_passed_on():
    found = processes(application(), EMBEDDED, listen={"broker": "127.0.0.1:9092", "console": "127.0.0.1:8080"})
    assert found["broker"].arguments[3] == "127.0.0.1:9092"
    assert found["serve"].arguments[-1] == "127.0.0.1:8080"


def test_every_topic_is_planned_with_its_role():
    found = {t.name: t for t in graph(application(**{"retention.ms": "1000"}), EMBEDDED).topics}
    assert found["departures"] == NeededTopic("departures", 4, {"retention.ms": "1000"}, "input")
    assert found["planes"] == NeededTopic("planes", 2, COMPACT, "table")
    assert found["enriched"] == NeededTopic("enriched", 4, {}, "output")
    assert found["late"] == NeededTopic("late", 4, {}, "alert")
    assert found["_flights.very_late"] == NeededTopic("_flights.very_late", 4, {}, "internal")
    assert found["flights.dead_letters"] == NeededTopic("flights.dead_letters", 1, COMPACT, "dead letters")
    assert found["_millstream.schemas"] == NeededTopic("_millstream.schemas", 1, COMPACT, "internal")
    assert found["_millstream.status"].config["cleanup.policy"] == "compact,delete"
    assert found["_millstream.lag"].config["cleanup.policy"] == "compact,delete"
    assert len(found) == 11


def test_settings_of_the_embedded_broker_are_refused_on_apache_kafka():
    app = application(**{"millstream.durability": "commit"})
    assert graph(app, EMBEDDED).topics
    with pytest.raises(
        MillstreamError, match=r"Apache Kafka at kafka:9092, which has no millstream.durability \(topic 'dep"
    ):
        graph(app, Settings(kafka=Kafka("kafka:9092")))
