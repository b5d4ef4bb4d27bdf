"""The page's state from what was declared, reported and read, and its HTML."""

import re

import msgspec
import pytest

from millstream.app.graph import describe
from millstream.client.admin import TopicFacts
from millstream.monitor.lag import Lag
from millstream.serve.console import group_states, part_states, query_states, topic_states, totals
from millstream.serve.graph import graph, tone
from millstream.serve.pages import Pages, headline, message, part_facts, progress
from millstream.serve.positions import Reading
from millstream.serve.state import (
    Chart,
    Column,
    Connection,
    DeadLetters,
    Letter,
    PartState,
    Series,
    State,
    ViewState,
)
from tests.serve.feed import application

DESCRIPTION = describe(application())
NO_DEAD = DeadLetters("flights.dead_letters", 0, False, [])


def topic(name, *ends, start=0, **config):
    return TopicFacts(name, start=dict.fromkeys(range(len(ends)), start), end=dict(enumerate(ends)), config=config)


def reading(*topics, lags=(), rates=None):
    return Reading(
        at=1000.0,
        topics={t.name: t for t in topics},
        ends={(t.name, p): end for t in topics for p, end in t.end.items()},
        lags=tuple(lags),
        rates=rates or {},
        histories={name: [rate] * 5 for name, rate in (rates or {}).items()},
    )


def state(**more):
    """A state of the flights in which everything has just begun, with `more`."""
    return state_of(DESCRIPTION, **{"views": [ViewState("delay_by_hour", ["origin", "hour"])]} | more)


def state_of(description, **more):
    """A state of an application in which everything has just begun, with `more`."""
    found = more.pop("reading", Reading())
    facts = more.pop("facts", {})
    dead = more.get("dead_letters", NO_DEAD)
    topics, groups = topic_states(description, found), group_states(description, found)
    queries = query_states(description, facts, {g.query: g.lag for g in groups if g.query}, dead)
    late = facts.get(("late", "rows"), {}).get("dropped")
    values = {
        "app": description["app"], "at": 1000.0,
        "kafka": Connection("Kafka log", True, None, 1000.0), "postgres": Connection("PostgreSQL", True, None, 1000.0),
        "totals": totals(topics, groups, dead, late), "topics": topics, "groups": groups, "queries": queries,
        "captures": part_states(facts, "capture"), "replays": part_states(facts, "replay"),
        "deliveries": part_states(facts, "deliver"), "processes": part_states(facts, "process"),
        "views": [], "alerts": [], "dead_letters": NO_DEAD,
    } | more  # fmt: skip
    return State(**values)


def test_topics_have_roles_and_their_own_come_first():
    found = topic_states(
        DESCRIPTION,
        reading(
            topic("_millstream.status", 9), topic("other", 1), topic("planes", 5, **{"cleanup.policy": "compact"}),
            topic("departures", 100, 50, start=10), topic("late_departures", 3), topic("departures_enriched", 7),
            topic("flights.dead_letters", 2), topic("__consumer_offsets", 1), rates={"departures": 12.5},
        ),
    )  # fmt: skip
    assert [(t.name, t.role) for t in found] == [
        ("departures", "input"), ("planes", "table"), ("departures_enriched", "output"), ("late_departures", "alert"),
        ("flights.dead_letters", "dead letters"), ("other", "other"), ("_millstream.status", "internal"),
    ]  # fmt: skip
    assert (found[0].partitions, found[0].end, found[0].events, found[0].rate) == (2, 150, 130, 12.5)
    assert [t.name for t in found if t.compacted] == ["planes"]


def test_lag_is_summed_by_group_and_topic_and_bound_to_its_query():
    lags = [
        Lag("flights.enriched", "departures", 0, 5, 10, 5),
        Lag("flights.enriched", "departures", 1, 8, 10, 2),
        Lag("a-group", "departures", 0, 0, 10, 10),
        Lag("flights.gone", "departures", 0, 0, 10, 10),
    ]
    groups = group_states(DESCRIPTION, reading(lags=lags))
    assert [(g.group, g.query, g.lag) for g in groups] == [
        ("flights.enriched", "enriched", 7), ("a-group", "", 10), ("flights.gone", "", 10),
    ]  # fmt: skip
    assert (groups[0].topics[0].partitions, groups[0].topics[0].lag) == (2, 7)


def test_queries_show_what_they_reported_and_wait_before():
    facts = {
        ("query", "enriched"): {
            "state": "running", "mode": "micro-batch", "batch": 7, "input_rows": 70, "rows_per_second": 3.5,
            "watermark": None, "dropped": 2, "batch_ms": 250, "state_rows": None, "output_rows": "nonsense", "at": 5.5,
        },
        ("query", "dead_letters"): {"state": "running", "dead": 3},
    }  # fmt: skip
    found = {q.name: q for q in query_states(DESCRIPTION, facts, {"enriched": 7}, NO_DEAD)}
    assert list(found) == ["delay_by_hour", "enriched", "very_late", "dead_letters"]
    assert (found["delay_by_hour"].state, found["very_late"].mode) == ("waiting", "realtime")
    enriched = found["enriched"]
    assert (enriched.batch, enriched.lag, enriched.dropped, enriched.output_rows) == (7, 7, 2, None)
    assert found["dead_letters"].inputs == ["departures", "arrivals"]


def test_the_headline_counts_what_came_in_and_what_needs_a_look():
    lags = [Lag("flights.enriched", "departures", 0, 5, 10, 5), Lag("stranger", "departures", 0, 0, 10, 10)]
    found = state(
        reading=reading(
            topic("departures", 100), topic("planes", 5), topic("departures_enriched", 90), topic("late_departures", 4),
            lags=lags, rates={"departures": 10.0, "departures_enriched": 10.0},
        ),
        facts={("query", "enriched"): {"dropped": 2}, ("query", "late"): {"dropped": 2}, ("late", "rows"): {"dropped": 2}},
    ).totals  # fmt: skip
    assert (found.events, found.rate, found.lag, found.alerts, found.dropped) == (105, 10.0, 5, 4, 2)
    assert state().totals.lag is None


def test_the_graph_joins_sources_topics_queries_and_results():
    found = graph(DESCRIPTION, state(facts={("replay", "flights"): {"state": "running"}}))
    assert ("source:ops", "topic:planes") in found.drawing.paths
    assert ("topic:planes", "query:enriched") in found.drawing.paths
    assert ("query:delay_by_hour", "result:delay_by_hour") in found.drawing.paths
    assert ("query:very_late", "topic:late_departures") in found.drawing.paths
    assert ("source:flights", "topic:arrivals") in found.drawing.paths
    assert [name for _, name in found.headings] == ["Sources", "Log", "Spark", "Results"]
    assert not found.flowing


def test_lines_flow_where_events_move_and_colours_tell_states():
    found = graph(
        DESCRIPTION,
        state(
            reading=reading(topic("departures", 100), topic("planes", 5), rates={"departures": 5.0, "planes": 0.0}),
            facts={
                ("query", "delay_by_hour"): {"state": "running", "rows_per_second": 5.0},
                ("query", "enriched"): {"state": "restarting"},
                ("query", "very_late"): {"state": "failed"},
            },
        ),
    )
    assert found.flowing == {
        ("topic:departures", "query:delay_by_hour"),
        ("query:delay_by_hour", "result:delay_by_hour"),
    }
    tones = {n.name: n.tone for n in found.nodes.values() if n.id.startswith("query")}
    assert tones == {"delay_by_hour": "on", "enriched": "warn", "very_late": "bad"}
    assert (tone("starting"), tone("stopped"), tone("unheard of")) == ("busy", "idle", "idle")


def test_a_page_of_nothing_says_what_will_come():
    page = Pages(DESCRIPTION).page(state())
    for words in ("No rows yet", "All quiet", "No topics yet", "No group has committed", "No supervisor reports"):
        assert words in page
    assert page.count("<h1") == 1


def test_without_views_there_is_no_database_to_speak_of():
    page = Pages(DESCRIPTION).page(state(postgres=None, views=[]))
    assert "PostgreSQL</span>" not in page
    assert 'id="views"' not in page


def test_a_silent_log_or_database_is_said():
    lost = Connection("Kafka log", False, "127.0.0.1:9 has been silent for 12 s", 1000.0)
    parts = Pages(DESCRIPTION).parts(state(kafka=lost, postgres=Connection("PostgreSQL", False, "refused.", None)))
    assert "Kafka log does not answer." in parts["problems"]
    assert "silent for 12 s. What is dimmed below is from" in re.sub(r"\s+", " ", parts["problems"])
    assert "refused. It will appear by itself." in re.sub(r"\s+", " ", parts["problems"])
    assert parts["connections"].count('data-state="down"') == 2


EVIL = "<script>alert(1)</script>\"'&"


def test_nothing_from_outside_becomes_markup():
    view = ViewState(
        "delay_by_hour", ["origin"], [Column("origin", "text", True), Column(EVIL, "integer")], [[EVIL, 1]], 1, False, 1, 1.0,
        Chart("hour", [EVIL], [EVIL], 0, [1.0], [Series(EVIL, [[1.0]])]),
    )  # fmt: skip
    letter = Letter("late_departures", 0, 1, 1.0, EVIL, {EVIL: EVIL}, EVIL, EVIL)
    evil = state(
        views=[view],
        alerts=[letter, Letter("late_departures", 0, 2, None, None, EVIL)],
        dead_letters=DeadLetters("flights.dead_letters", 1, True, [letter]),
        kafka=Connection(EVIL, False, EVIL, 1.0),
        facts={
            ("process", EVIL): {"state": EVIL, "error": EVIL, "restarts": 1, "pid": EVIL, "text": EVIL},
            ("capture", EVIL): {
                "state": "failed",
                "error": EVIL,
                EVIL: EVIL,
                "tables": {EVIL: {"rows": 1, "total": 2}},
            },
            ("query", "enriched"): {"state": "failed", "error": EVIL, "watermark": EVIL},
        },
        reading=reading(topic("departures", 5), lags=[Lag(EVIL, EVIL, 0, 0, 1, 1)]),
    )
    page = Pages(DESCRIPTION).page(evil)
    assert "<script>alert" not in page
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)" in page


def test_the_page_needs_no_inline_script_or_style():
    page = Pages(DESCRIPTION).page(state())
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert not re.findall(
        r"<script[^>]*\b(?:defer|async)", page
    )  # htmx would start before its extension for streams is there
    assert not re.findall(r"\sstyle=|<style|\son[a-z]+=|javascript:", page)
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)


def test_the_state_is_json():
    encoded = msgspec.json.decode(msgspec.json.encode(state()))
    assert encoded["app"] == "flights"
    assert {q["name"] for q in encoded["queries"]} == {"delay_by_hour", "enriched", "very_late"}


def test_a_part_replaces_its_element():
    assert message("totals", "<b>1</b>") == '<hx-partial hx-target="#totals" hx-swap="innerMorph"><b>1</b></hx-partial>'


def test_every_part_of_the_page_has_its_element():
    pages = Pages(DESCRIPTION)
    page = pages.page(state())
    for part in pages.parts(state()):
        assert f'id="{part}"' in page


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"sent": 25, "total": 100}, 25.0),
        ({"sent": 25, "total": None}, None),
        ({"sent": 300, "total": 100}, 100.0),
        ({"tables": {"a": {"rows": 5, "total": 10}, "b": {"rows": 0, "total": 10}}}, 25.0),
        ({"tables": {"a": {"rows": 5, "total": 10, "copied": True}}}, None),
        ({}, None),
    ],
)
def test_progress(facts, expected):
    assert progress(facts) == expected


def test_facts_are_named_for_people():
    part = PartState("ops", "streaming", None, None, {"lag_bytes": 1500, "latency_ms": 4.1, "rate": 12.0, "lsn": 5, "error": None,
                     "tables": {"planes": {"rows": 3322, "copied": True}, "x": {"rows": 1, "total": 2}}})  # fmt: skip
    assert part_facts(part.facts) == [
        ("lag", "1.5 kB"), ("latency", "4 ms"), ("rate", "12/s"), ("planes", "3,322 rows"), ("x", "1 of 2 rows"),
    ]  # fmt: skip


def test_the_line_of_an_alert_shows_plain_fields_and_times_last():
    fields = {"at": "2013-01-01T00:00:00Z", "a": 1, "nested": {}, "none": None, "b": "x"}
    assert [name for name, _ in headline(fields)] == ["a", "b", "at"]
