from datetime import datetime, timedelta

import pytest

import millstream as ms
from millstream.app.outputs import Stream
from millstream.settings import MillstreamError


class Reading(ms.Event):
    sensor: str
    value: float
    at: datetime


@pytest.fixture
def app():
    return ms.App("sensors")


@pytest.fixture
def readings(app):
    return app.topic("readings", Reading, key="sensor", event_time="at", lateness="1 minute")


def test_decorators_return_the_function_and_declare_a_query(app, readings):
    sensors = app.table("sensors", source=ms.postgres("ops", table="sensors"))

    @app.stream(readings, sensors, to="enriched", key="sensor", every="2 seconds")
    def enriched(readings, sensors):
        return readings.join(sensors, "sensor")

    assert enriched(type("Fake", (), {"join": lambda self, *a: a})(), "s") == ("s", "sensor")
    query = app.queries["enriched"]
    assert query.output == Stream("enriched", ("sensor",)) and query.every == timedelta(seconds=2)
    assert query.streams == (readings,)
    assert query.states == (sensors,)


def one(readings):
    return readings


def two(readings, more):
    return readings


WRONG = [
    (lambda app, t: app.view(t, key="sensor")(two), "names 1 inputs but the function takes 2"),
    (lambda app, t: app.view(key="sensor")(one), "name the topics and tables that it reads"),
    (lambda app, t: app.view("readings", key="sensor")(one), "inputs are what app.topic"),
    (lambda app, t: app.view(t, key=[])(one), "columns that identify"),
    (lambda app, t: app.stream(t, to="readings")(one), "the query reads this topic"),
    (lambda app, t: [app.stream(t, to="x", name=n)(one) for n in ("a", "b")], "already has a topic of that name"),
    (lambda app, t: app.view(t, t, key="sensor")(two), "is named twice"),
    (lambda app, t: app.stream(t, to="_x")(one), "kept for Millstream"),
    (lambda app, t: app.alert(t, to="x", latency="fast")(one), "latency must be"),
    (lambda app, t: app.alert(t, to="x", every="1 second")(one), "at least 5 seconds"),
    (lambda app, t: app.topic("readings", Reading), "already has a topic"),
    (lambda app, t: app.table("x", source="ops"), "source must be ms.postgres"),
    (lambda app, t: ms.App("Sensors"), "application name"),
    (lambda app, t: ms.App("other").view(t, key="sensor")(one), "declared by another application"),
    (lambda app, t: [app.view(t, key="sensor")(one), app.view(t, key="sensor")(one)], "name is taken"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_wrong_declarations_say_what_to_do(app, readings, declare, message):
    with pytest.raises(MillstreamError, match=message):
        declare(app, readings)


def test_realtime_alerts_take_no_tables(app, readings):
    sensors = app.table("sensors", source=ms.postgres("ops", table="sensors"))
    with pytest.raises(MillstreamError, match=r"join it in an @app\.stream first"):
        app.alert(readings, sensors, to="x")(two)


def test_a_query_writes_a_declared_topic_that_others_read(app, readings):
    hot = app.topic("hot", Reading, key="sensor", event_time="at")
    app.stream(readings, to=hot, key="sensor", name="filtered")(one)
    app.view(hot, key="sensor", name="latest")(one)
    assert app.queries["filtered"].output == Stream("hot", ("sensor",))
    assert app.queries["latest"].streams == (hot,)
    with pytest.raises(MillstreamError, match="declared by another application"):
        ms.App("other").stream(readings, to=hot, name="again")(one)
