"""The steps between an application's processes."""

import threading
import time

import pytest

from millstream.app.graph import Graph
from millstream.app.process import Process
from millstream.app.topics import NeededTopic
from millstream.run import steps
from millstream.run.part import Context
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.spark import jars
from tests.brokers import running_broker

TOPICS = (NeededTopic("departures", 2, {"a": "b"}),)


def made(settings, *names):
    prepare = {"spark": "millstream.spark.jars"}
    processes = tuple(Process(name, ("true",), prepare=prepare.get(name, "")) for name in names)
    return {step.name: step for step in steps.steps(Graph("flights", TOPICS, processes=processes), settings)}


def test_topics_come_after_the_broker_and_jars_only_with_spark():
    found = made(Settings(), "broker", "spark")
    assert set(found) == {"topics", "jars"} and found["topics"].after == {"broker"}
    found = made(Settings(kafka=Kafka("a:1")), "serve")
    assert set(found) == {"topics"} and found["topics"].after == frozenset()


def context(settings, said=None):
    return Context(settings, (said if said is not None else []).append, threading.Event())


def test_topics_are_created_as_planned(monkeypatch):
    asked, forgotten, earlier = [], [], time.time()
    monkeypatch.setattr(steps, "wait_for_kafka", lambda kafka, timeout: None)
    monkeypatch.setattr(steps, "ensure_topics", lambda kafka, topics: asked.append((kafka, topics)))
    monkeypatch.setattr(steps, "forget", lambda kafka, app, before: forgotten.append((app, before)))
    settings = Settings(kafka=Kafka("a:1"))
    made(settings)["topics"].call(context(settings))
    assert asked == [(Kafka("a:1"), [("departures", 2, {"a": "b"})])]
    [(app, before)] = forgotten
    assert app == "flights" and earlier <= before <= time.time()


def test_a_log_of_ones_own_that_does_not_answer_ends_the_run_and_the_embedded_one_is_tried_again(monkeypatch):
    def away(kafka, timeout):
        raise MillstreamError("no broker answers")

    monkeypatch.setattr(steps, "wait_for_kafka", away)
    ready = Settings(kafka=Kafka("a:1"))
    with pytest.raises(MillstreamError, match="no broker answers"):
        made(ready)["topics"].call(context(ready))
    with pytest.raises(steps._LogAway, match="no broker answers"):
        made(Settings(), "broker")["topics"].call(context(ready))


def test_downloads_tell_how_far_they_are(monkeypatch, tmp_path):
    name = jars.pinned()[2].name
    monkeypatch.setattr(jars, "fetch", lambda cache, progress: progress(name, 5_100_000, 9_900_000))
    said = []
    made(Settings(), "spark")["jars"].call(context(Settings(cache=tmp_path), said))
    assert said == ["downloading connector jar 3 of 4, 5.1 of 9.9 MB"]


@pytest.mark.system
def test_a_setting_that_the_log_refuses_ends_the_run_with_its_reason(tmp_path):
    """And is not tried again: the value will not become right. A log that is away is."""
    graph = Graph("flights", (NeededTopic("departures", 2, {"retention.ms": "soon"}),))
    [step] = steps.steps(graph, Settings())
    expected = pytest.raises(MillstreamError, match=r"topic 'departures' cannot be created: .*retention\.ms")
    with running_broker(tmp_path / "log") as kafka, expected:
        step.call(Context(Settings(kafka=kafka), str, threading.Event()))
