"""The checks: right results pass, and every way of being wrong is found and named."""

from collections import Counter
from datetime import UTC, datetime

import pytest

from millstream.demo import checks
from millstream.demo.batch import Expected, Hour
from millstream.demo.checks import Enriched, ViewRow

TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
HOUR = Hour(5, -2.0, 0.8, (-5.0, -4.0, -2.0, -1.0, 2.0))
KEY = ("UA", 1, "EWR", TEN)
OTHER = ("AA", 2, "JFK", TEN)
WANT = Expected(1, {}, Counter(), {KEY: "N1", OTHER: "N2"}, 0, {"N1": "737"}, {"UA": "United", "AA": "American"})
RIGHT = [Enriched(KEY, "N1", "737", "United", False), Enriched(OTHER, "N2", None, "American", False)]


def test_an_equal_view_passes():
    check = checks.view({("EWR", TEN): HOUR}, {("EWR", TEN): ViewRow(5, -2.0 + 1e-12, 0.8)})
    assert check.ok
    assert "1 rows, 5 flights" in check.text


@pytest.mark.parametrize(
    ("found", "example"),
    [
        ({}, "missing from the view"),
        ({("EWR", TEN): ViewRow(4, -2.0, 0.8)}, "4 flights, expected 5"),
        ({("EWR", TEN): ViewRow(5, -2.001, 0.8)}, "mean delay -2.001, expected -2.0"),
        ({("EWR", TEN): ViewRow(5, -2.0, 2.0)}, "90th percentile 2.0, expected 0.8"),
        ({("EWR", TEN): ViewRow(5, -2.0, 0.8), ("JFK", TEN): ViewRow(1, 0, 0)}, "not expected in the view"),
    ],
)
def test_a_wrong_view_fails(found, example):
    check = checks.view({("EWR", TEN): HOUR}, found)
    assert not check.ok
    assert example in check.examples[0]


def test_an_approximate_percentile_may_be_off_by_its_rank_error():
    assert checks.p90_agrees(2.0, HOUR, 0.01)
    assert checks.p90_agrees(-1.0, HOUR, 0.01)
    assert not checks.p90_agrees(-2.0, HOUR, 0.01)


def test_alerts_come_once():
    assert checks.alerts(Counter([KEY]), Counter([KEY])).ok
    assert checks.alerts(Counter([KEY]), Counter()).examples == [
        "UA 1 from EWR at 2013-01-01 10:00Z: 0 alerts, expected 1"
    ]
    assert not checks.alerts(Counter([KEY]), Counter([KEY, KEY])).ok
    assert not checks.alerts(Counter([KEY]), Counter([KEY, OTHER])).ok


def enriched(rows, plane="N1"):
    found, repeats = checks.enriched(WANT, rows, plane, "NEW")
    return {check.name: check for check in found}, repeats


def test_enriched_departures_pass_with_repeats_and_a_changed_plane():
    changed = Enriched(KEY, "N1", "NEW", "United", True)
    found, repeats = enriched([*RIGHT, changed])
    assert all(check.ok for check in found.values())
    assert repeats == 1


@pytest.mark.parametrize(
    ("rows", "name", "example"),
    [
        (RIGHT[:1], "every departure enriched", "AA 2 from JFK at 2013-01-01 10:00Z: missing"),
        ([*RIGHT, Enriched(("X", 1, "EWR", TEN), None, None, None, False)], "every departure enriched", "no departure"),
        ([Enriched(KEY, "N1", None, "United", False), RIGHT[1]], "planes and airlines right", "model None"),
        ([Enriched(KEY, "N1", "737", None, False), RIGHT[1]], "planes and airlines right", "airline None"),
        (RIGHT, "a change in the database shows", "no departure of N1 shows 'NEW'"),
        ([Enriched(KEY, "N1", "737", "United", True), RIGHT[1]], "a change in the database shows", "model '737'"),
    ],
)
def test_wrong_enriched_departures_fail(rows, name, example):
    check = enriched(rows)[0][name]
    assert not check.ok
    assert example in check.examples[0]


def test_dead_letters_are_exactly_the_malformed_events():
    assert checks.dead_letters({"departures-0-5"}, {"departures-0-5": "no JSON"}).ok
    assert not checks.dead_letters({"departures-0-5"}, {}).ok
    assert not checks.dead_letters(set(), {"departures-0-5": "no JSON"}).ok


def test_dropped_rows_and_silent_queries_fail():
    assert checks.dropped(["a"], {"a": {"dropped": 0}}).ok
    assert checks.dropped(["a"], {"a": {"dropped": 3}}).examples == ["a: 3 rows dropped as late"]
    assert not checks.dropped(["a"], {}).ok


def test_a_short_input_fails():
    assert checks.stored({("departures", 0): 5}, {("departures", 0): 5}).ok
    assert not checks.stored({("departures", 0): 5}, {("departures", 0): 4}).ok


def test_only_some_examples_are_shown():
    late = Counter({("UA", n, "EWR", TEN): 1 for n in range(100)})
    check = checks.alerts(late, Counter())
    assert len(check.examples) == checks.MAX_EXAMPLES
    assert "100 wrong" in check.text
