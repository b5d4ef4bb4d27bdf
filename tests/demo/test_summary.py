"""The summary's own arithmetic, and what a person and a program see of it."""

import io
import json

from rich.console import Console

from millstream.demo.checks import Check
from millstream.demo.summary import Summary, latency, render, visible


def summary(*checks):
    return Summary(
        days=7,
        events_in=12_151,
        input_seconds=10.0,
        result_seconds=12.5,
        events_per_second=1215.1,
        topics={"departures": 6_077},
        view_rows=398,
        repeats=0,
        dead_letters={"not JSON": 2},
        dropped={"very_late": 0},
        latencies=[latency("alert very_late", range(1, 101), "from … to …")],
        checks=list(checks),
    )


def test_percentiles_are_ranks():
    found = latency("x", [5, 1, 4, 2, 3], "")
    assert (found.p50, found.p90, found.p99, found.most, found.count) == (3, 5, 5, 5, 5)
    assert latency("x", [], "").p99 == 0


def test_an_event_is_visible_with_the_first_report_behind_it():
    sent = {("departures", 0): [1000, 1500, 2000], ("departures", 1): [1200]}
    history = [(1.6, {("departures", 0): 1}), (2.6, {("departures", 0): 2, ("departures", 1): 1})]
    assert sorted(visible(history, sent)) == sorted([600, 1100, 1400])  # the last event has no report yet


def test_it_is_right_when_every_check_holds():
    assert summary(Check("a", True, "fine")).ok
    assert not summary(Check("a", True, "fine"), Check("b", False, "not fine", ["this one"])).ok


def test_a_program_sees_plain_values():
    found = json.loads(json.dumps(summary(Check("a", False, "bad", ["this one"])).as_dict()))
    assert found["ok"] is False
    assert found["checks"] == [{"name": "a", "ok": False, "text": "bad", "examples": ["this one"]}]


def test_a_person_sees_what_is_wrong():
    output = io.StringIO()
    Console(file=output, width=160).print(
        render(summary(Check("each alert once", False, "1 wrong", ["UA 1 [from] EWR"])))
    )
    text = output.getvalue()
    for part in (
        "12,151 events",
        "departures",
        "each alert once",
        "UA 1 [from] EWR",
        "1 checks failed",
        "not JSON",
    ):
        assert part in text
