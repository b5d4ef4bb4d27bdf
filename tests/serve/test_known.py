"""What is known right now: no green for what a dead process or a silent log said last."""

import re

import pytest

from millstream.serve.graph import tone
from millstream.serve.known import SILENT_S, judged, known
from millstream.serve.pages import Pages
from millstream.serve.state import Connection
from tests.serve.test_console import DESCRIPTION, state

RUNNING = {"state": "running", "batch": 7, "rows_per_second": 5.0, "watermark": "2013-01-01T08:00:00Z", "at": 990.0}


@pytest.mark.parametrize(
    ("said", "process", "age", "answers", "expected"),
    [
        ("running", "ready", 3.0, True, "running"),
        ("running", None, 3.0, True, "running"),  # no supervisor reports: an application that is run by hand
        ("running", "restarting", 3.0, True, "restarting"),
        ("running", "starting", 3.0, True, "starting"),
        ("running", "failed", 3.0, True, "failed"),
        ("running", "stopped", 3.0, True, "stopped"),
        ("failed", "restarting", 3.0, True, "failed"),  # the reason stays
        ("running", "ready", 3.0, False, "unknown"),
        ("running", "ready", SILENT_S + 1, True, "silent"),
        ("waiting", "ready", None, True, "waiting"),
    ],
)
def test_a_word_is_joined_with_its_process_its_age_and_the_log(said, process, age, answers, expected):
    assert known(said, process, age, answers=answers) == expected
    assert tone(expected) != "on" or expected == "running"


def facts(process):
    """A query, a capture and a delivery that said "running", and the state of their processes."""
    names = ("spark", "capture-ops", "deliver", "broker")
    return {
        ("query", "delay_by_hour"): RUNNING,
        ("capture", "ops"): {"state": "streaming", "at": 990.0},
        ("deliver", "late_departures"): {"state": "running", "at": 990.0},
        **{("process", name): {"state": "ready" if name == "broker" else process, "at": 995.0} for name in names},
    }


def test_a_dead_process_takes_the_green_of_its_parts():
    alive, dead = (judged(state(facts=facts(process))) for process in ("ready", "restarting"))
    words = [[p.state for p in (s.queries[0], *s.captures, *s.deliveries)] for s in (alive, dead)]
    assert words == [["running", "streaming", "running"], ["restarting"] * 3]
    assert dead.queries[0].stale and dead.queries[0].rows_per_second is None and dead.queries[0].batch == 7
    parts = Pages(DESCRIPTION).parts(dead)
    assert 'data-tone="on"' not in parts["queries"] + parts["pipeline"]
    assert not re.search('node query[^>]*data-tone="on"', parts["graph"]) and "flowing" not in parts["graph"]
    assert "Process spark is starting again." in parts["problems"]
    assert '<tr id="query-delay_by_hour" class="still">' in parts["queries"]
    assert 'class="age" data-at="990.0"' in parts["queries"]


def test_a_silent_log_takes_all_green():
    lost = Connection("Kafka log", False, "silent", 1000.0)
    parts = Pages(DESCRIPTION).parts(judged(state(facts=facts("ready"), kafka=lost)))
    assert 'data-tone="on"' not in "".join(parts.values())
    assert 'data-dims="log"' in parts["problems"]


def test_after_a_restart_no_batch_is_minus_one():
    found = judged(state(facts={("query", "delay_by_hour"): {"state": "starting", "batch": -1}}))
    assert found.queries[0].batch is None
    assert "-1" not in Pages(DESCRIPTION).parts(found)["queries"]
