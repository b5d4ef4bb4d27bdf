"""Parts of the page are rendered apart, when what they show has changed, and from any value that a topic may hold."""

import pytest

from millstream.serve import pages
from millstream.serve.known import judged
from millstream.serve.pages import PARTS, Pages
from millstream.serve.state import Letter
from tests.serve.test_console import DESCRIPTION, reading, state, topic

ODD = [
    "text", 3, -1, 1e300, 10**400, True, None, [], [[[]]], {}, {"a": {"b": 1}}, [None, {"x": []}], "\x00\u202e",
    {"a": {"rows": "many", "total": [], "copied": 0}}, {"a": 3, "b": None},
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_facts_cost_nothing(odd):
    names = ("state", "error", "at", "batch", "watermark", "mode", "tables", "sent", "total", "memory", "pid", "restarts",
             "text", "lag_bytes", "latency_ms", "rate", "event_time", "dropped", "rows_per_second")  # fmt: skip
    kinds = [("query", "enriched"), ("capture", "ops"), ("replay", "flights"), ("deliver", "x"), ("process", "spark")]
    made = Pages(DESCRIPTION)
    for name in names:
        found = judged(state(facts={kind: {"state": "running", name: odd} for kind in kinds}))
        parts = made.parts(found)
        assert not [part for part, html in parts.items() if "cannot be shown" in html], name


def test_a_part_that_fails_costs_no_other(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("sesame")

    monkeypatch.setattr(pages, "graph", fail)
    made = Pages(DESCRIPTION)
    parts = made.parts(state())
    made.parts(state())
    assert "This part (graph) cannot be shown at the moment: RuntimeError." in parts["graph"]
    assert "delay_by_hour" in parts["queries"] and "sesame" not in "".join(parts.values())
    assert caplog.text.count("cannot be rendered") == 1, "said once, not each second"
    assert "cannot be shown" in made.page(state())


def test_a_part_is_rendered_only_when_what_it_shows_has_changed(monkeypatch):
    made, rendered = Pages(DESCRIPTION), []
    find = made._environment.get_template

    def noting(name, *more):
        if not more:  # with more it is a template that another one includes
            rendered.append(name)
        return find(name, *more)

    monkeypatch.setattr(made._environment, "get_template", noting)
    first = made.parts(state(at=1000.0))
    assert len(rendered) == len(PARTS) + 1
    rendered.clear()
    assert made.parts(state(at=2000.0)) == first and rendered == []
    made.parts(state(reading=reading(topic("departures", 5))))
    assert sorted(rendered) == ["graph.html", "topics.html", "totals.html"]


def test_what_is_not_seen_or_turns_text_around_is_escaped():
    evil = Letter("late_departures", 0, 1, 5.0, "k\u202eyek", {"a\u2066": "x\u202ey", "b": "<b>\x1b[31m"}, "o\u200b")
    html = Pages(DESCRIPTION).parts(state(alerts=[evil]))["alerts"]
    assert "x⟨U+202E⟩y" in html and "a⟨U+2066⟩" in html and "⟨U+001B⟩[31m" in html and "&lt;b&gt;" in html
    assert not set("\u202e\u2066\x1b\u200b") & set(html)


def test_alerts_that_were_raised_are_not_called_quiet():
    raised = state(reading=reading(topic("late_departures", 37)))
    assert "37 raised" in (html := Pages(DESCRIPTION).parts(raised)["alerts"])
    assert "quiet" not in html.lower() and "Reading." in html
    gone = state(reading=reading(topic("late_departures", 37, start=37)))
    assert "Quiet now." in Pages(DESCRIPTION).parts(gone)["alerts"]
    assert "All quiet." in Pages(DESCRIPTION).parts(state())["alerts"]
