"""What running an application means, by values."""

import sys
from datetime import datetime
from pathlib import Path

import pytest

import millstream as ms
from millstream.run.plan import TopicPlan, embedded_databases, plan, plan_topics
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
    return {p.name: p for p in plan(app, settings, file="flights.py", **more).processes}


def test_everything_embedded():
    found = processes(application(), EMBEDDED)
    assert {name: set(p.needs) for name, p in found.items()} == {
        "broker": set(),
        "postgres": set(),
        "capture-ops": {"topics", "postgres"},
        "capture-shop": {"topics", "postgres"},
        "spark": {"topics", "postgres", "capture-ops", "capture-shop", "jars"},
        "deliver": {"topics"},
        "serve": {"topics", "postgres"},
    }
    assert found["broker"].command == (
        sys.executable, "-m", "millstream.broker", "--data", "/data/log", "--listen", "127.0.0.1:{port}", "--stop-with-stdin",
    )  # fmt: skip
    assert found["capture-ops"].command[1:] == (
        "-m",
        "millstream.run.child",
        "capture",
        "flights.py",
        "--source",
        "ops",
    )
    assert found["postgres"].command[-6:] == ("--database", "millstream", "--database", "ops", "--database", "shop")


def test_what_has_an_address_does_not_run_here():
    settings = Settings(kafka=Kafka("kafka:9092"), postgres="host=db", sources={"ops": "host=a", "shop": "host=b"})
    found = processes(application(), settings)
    assert set(found) == {"capture-ops", "capture-shop", "spark", "deliver", "serve"}
    assert found["spark"].needs == {"topics", "capture-ops", "capture-shop", "jars"}
    assert found["serve"].needs == {"topics"}


def test_postgres_runs_for_a_source_alone_or_for_the_views_alone():
    views_elsewhere = Settings(postgres="host=db", sources={"shop": "host=b"})
    assert embedded_databases(application(), views_elsewhere) == ("ops",)
    found = processes(application(), views_elsewhere)
    assert "postgres" in found["capture-ops"].needs
    assert "postgres" not in found["capture-shop"].needs | found["spark"].needs | found["serve"].needs
    sources_elsewhere = Settings(sources={"ops": "host=a", "shop": "host=b"})
    assert embedded_databases(application(), sources_elsewhere) == ("millstream",)


def test_an_application_without_queries_needs_no_spark():
    app = ms.App("empty")
    app.topic("departures", Departure)
    assert set(processes(app, EMBEDDED)) == {"broker", "serve"}


def test_addresses_that_the_user_asked_for_are_passed_on():
    found = processes(application(), EMBEDDED, listen={"broker": "127.0.0.1:9092", "console": "127.0.0.1:8080"})
    assert found["broker"].command[-2] == "127.0.0.1:9092"
    assert found["serve"].command[-1] == "127.0.0.1:8080"


def test_every_topic_is_planned_with_its_role():
    found = {t.name: t for t in plan_topics(application(**{"retention.ms": "1000"}))}
    assert found["departures"] == TopicPlan("departures", 4, {"retention.ms": "1000"}, "topic")
    assert found["planes"] == TopicPlan("planes", 2, COMPACT, "table")
    assert found["enriched"] == TopicPlan("enriched", 4, {}, "stream")
    assert found["late"] == TopicPlan("late", 4, {}, "alert")
    assert found["_flights.very_late"] == TopicPlan("_flights.very_late", 4, {}, "internal")
    assert found["flights.dead_letters"] == TopicPlan("flights.dead_letters", 1, COMPACT, "dead letters")
    assert found["_millstream.schemas"] == TopicPlan("_millstream.schemas", 1, COMPACT, "internal")
    assert found["_millstream.status"].config["cleanup.policy"] == "compact,delete"
    assert found["_millstream.lag"].config["cleanup.policy"] == "compact,delete"
    assert len(found) == 11


def test_settings_of_the_embedded_broker_are_refused_on_apache_kafka():
    app = application(**{"millstream.durability": "commit"})
    assert plan(app, EMBEDDED, file="flights.py").topics
    with pytest.raises(
        MillstreamError, match=r"Apache Kafka at kafka:9092, which has no millstream.durability \(topic 'dep"
    ):
        plan(app, Settings(kafka=Kafka("kafka:9092")), file="flights.py")
