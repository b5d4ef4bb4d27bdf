"""Turning the state into HTML: one template per part of the page, so that only the parts that changed are sent."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from millstream.serve import columns, text
from millstream.serve.graph import graph, tone
from millstream.serve.state import PartState, State, ViewState

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("vendor/htmx-4.0.1.min.js", "vendor/htmx-sse-4.0.1.min.js", "vendor/uplot-1.6.32.min.js", "console.js")
STYLES = ("vendor/uplot-1.6.32.min.css", "console.css")
FONT = "vendor/inter-5.3.0.woff2"
ICON = "icon.svg"
HEADLINE = 6  # fields of an alert that fit into its line; the rest is behind a click
MAX_FACTS = 16  # of a part that reports much
_UNTOLD = ("lsn", "to", "text", "pid")  # facts not worth showing, or shown elsewhere
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")

_log = logging.getLogger(__name__)


def _servers(state: State) -> object:
    """What is shown of log and database: not when they answered last, as long as they do."""
    return [
        (c.name, c.up, c.error, c.since if c.error else c.since is None) for c in (state.kafka, state.postgres) if c
    ]


def _alerts_kept(state: State) -> int:
    return sum(t.events for t in state.topics if t.role == "alert")


# Parts of the page, by the id of the element that they fill, with their templates and what they show of the state: a part is
# rendered again when that has changed. Views come in addition, one part each.
PARTS: dict[str, tuple[str, Callable[[State], object]]] = {
    "connections": ("connections.html", _servers),
    "problems": ("problems.html", lambda s: (_servers(s), s.queries, s.captures, s.replays, s.deliveries, s.processes)),
    "totals": ("totals.html", lambda s: (s.totals, s.kafka.since is None, s.dead_letters.at_least)),
    "graph": (
        "graph.html",
        lambda s: (
            s.topics,
            s.queries,
            s.captures,
            s.replays,
            s.dead_letters,
            [(v.name, v.total, v.more) for v in s.views],
        ),
    ),
    "alerts": ("alerts.html", lambda s: (s.alerts, s.totals.alerts, [q.alerts for q in s.queries], _alerts_kept(s))),
    "dead-letters": ("dead_letters.html", lambda s: s.dead_letters),
    "queries": ("queries.html", lambda s: s.queries),
    "topics": ("topics.html", lambda s: (s.topics, s.kafka.since is None)),
    "groups": ("groups.html", lambda s: s.groups),
    "pipeline": ("pipeline.html", lambda s: (s.captures, s.replays, s.deliveries)),
    "processes": ("processes.html", lambda s: s.processes),
}


def version_of_assets() -> str:
    """Return a digest of all assets: it is part of their addresses, so that browsers may keep them for good."""
    digest = hashlib.sha256()
    for name in sorted((*SCRIPTS, *STYLES, FONT, ICON)):
        digest.update((ASSETS / name).read_bytes())
    return digest.hexdigest()[:12]


class Pages:
    """Renders the page of one application."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description
        self._rendered: dict[str, tuple[bytes, str]] = {}  # by part: of what it was made, and the HTML
        self._broken: set[str] = set()
        self._environment = Environment(
            loader=PackageLoader("millstream.serve", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=text.visible,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        for name in (
            "count",
            "short",
            "rate",
            "size",
            "duration",
            "clock",
            "moment",
            "cell",
            "brief",
            "points",
            "sentence",
        ):
            self._environment.filters[name] = getattr(text, name)
        self._environment.filters["value"] = value
        self._environment.filters["json"] = lambda value: msgspec.json.encode(value).decode()
        self._environment.globals.update(
            tone=tone,
            headline=headline,
            progress=progress,
            part_facts=part_facts,
            restarts=restarts,
            row_id=row_id,
            column_index=column_index,
            view_window=columns.window,
            numeric=columns.NUMERIC,
            assets=f"/assets/{version_of_assets()}",
            scripts=SCRIPTS,
            styles=STYLES,
            icon=ICON,
            app=description["app"],
        )

    def page(self, state: State) -> str:
        """Return the whole page."""
        parts = self.parts(state)
        return self._environment.get_template("page.html").render(
            parts=parts, views=state.views, state=state, has_alerts=any(q.alerts for q in state.queries)
        )

    def parts(self, state: State) -> dict[str, str]:
        """Return the inner HTML of every part, by the id of its element.

        A part is rendered when what it shows has changed. One that cannot be rendered says so, and harms no other.
        """
        found = {}
        for part, (template, shows) in PARTS.items():
            found[part] = self._part(part, template, shows(state), {"state": state})
        for view in state.views:
            found[f"view-{view.name}"] = self._part(
                f"view-{view.name}", "view.html", view, {"state": state, "view": view}
            )
        self._rendered = {part: self._rendered[part] for part in found if part in self._rendered}
        return found

    def _part(self, part: str, template: str, shown: object, values: dict[str, Any]) -> str:
        try:
            digest = hashlib.sha256(msgspec.json.encode(shown)).digest()
            known = self._rendered.get(part)
            if known is not None and known[0] == digest:
                return known[1]
            if part == "graph":
                values = {**values, "graph": graph(self._description, values["state"])}
            html = self._environment.get_template(template).render(values)
        except Exception as error:  # a value that nobody expected: it costs this part, not the page
            if part not in self._broken:
                _log.exception("the part %s of the page cannot be rendered", part)
                self._broken.add(part)
            return str(self._environment.get_template("broken.html").render(part=part, error=type(error).__name__))
        self._broken.discard(part)
        self._rendered[part] = (digest, html)
        return html

    def refused(self, reason: str) -> str:
        """Return the page for somebody without a session."""
        return self._environment.get_template("refused.html").render(reason=reason)


def message(part: str, html: str) -> str:
    """Return the event that replaces the inner HTML of a part, in the form that htmx swaps."""
    return f'<hx-partial hx-target="#{part}" hx-swap="innerMorph">{html}</hx-partial>'


def value(given: Any) -> str:
    """Return a field of a message as the page shows it: ISO times shortened, other values as they are, bounded."""
    if isinstance(given, str) and _TIME.match(given):
        return text.moment(given)
    return text.brief(given)


def headline(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields of an alert for its line: plain values in their order, times last because they are long."""
    plain = [(k, v) for k, v in fields.items() if v is not None and not isinstance(v, dict | list)]
    return sorted(plain, key=lambda f: isinstance(f[1], str) and bool(_TIME.match(f[1])))[:HEADLINE]


def progress(facts: Mapping[str, Any]) -> float | None:
    """Return how far a part is, in percent, when it says both how much is done and how much there is."""
    done: float | None
    total: float | None
    tables = facts.get("tables")
    if isinstance(tables, Mapping) and all(isinstance(t, Mapping) for t in tables.values()):
        if all(t.get("copied") for t in tables.values()):
            return None  # a snapshot that is complete needs no bar
        done, total = (sum(_figure(t.get(n)) or 0 for t in tables.values()) for n in ("rows", "total"))
    else:
        done, total = _figure(facts.get("sent")), _figure(facts.get("total"))
    if done is None or total is None or total <= 0:
        return None
    return float(max(0.0, min(100.0, 100.0 * done / total)))


def part_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a part reported as names and texts, at most MAX_FACTS, nested values by their parts."""
    found: list[tuple[str, str]] = []
    for name, given in facts.items():
        label = name.replace("_", " ")
        if given is None or given == "" or name in _UNTOLD:
            continue
        if name == "tables" and isinstance(given, Mapping):
            found += [(str(k), _table(t)) for k, t in given.items()]
        elif isinstance(given, Mapping):
            found += [(f"{label} {k}", _fact(f"{name}_{k}", v)) for k, v in given.items() if v is not None]
        elif isinstance(given, list | tuple):
            found.append((label, ", ".join(_fact(name, v) for v in given)))
        else:
            found.append((label.removesuffix(" bytes").removesuffix(" ms"), _fact(name, given)))
    return found[:MAX_FACTS]


def restarts(processes: list[PartState]) -> int:
    """Return how often processes were started again, in all."""
    counts = [p.facts.get("restarts") for p in processes]
    return sum(c for c in counts if isinstance(c, int) and text.is_number(c))


def row_id(view: ViewState, row: list[Any]) -> str:
    """Return the id of a row's element, made of its key, so that the row keeps its element as it moves."""
    keys = [str(v) for c, v in zip(view.columns, row, strict=True) if c.key] or [str(v) for v in row]
    return f"row-{view.name}-" + hashlib.sha256("\0".join(keys).encode()).hexdigest()[:16]


def column_index(view: ViewState, name: str) -> int:
    """Return the place of a column."""
    return next(i for i, c in enumerate(view.columns) if c.name == name)


def _figure(given: Any) -> float | None:
    return given if text.is_number(given) else None


def _table(given: Any) -> str:
    if not isinstance(given, Mapping):
        return value(given)
    rows, total = _figure(given.get("rows")), _figure(given.get("total"))
    return f"{text.count(rows)} rows" if given.get("copied") else f"{text.count(rows)} of {text.count(total)} rows"


def _fact(name: str, given: Any) -> str:
    if isinstance(given, bool):
        return "yes" if given else "no"
    if not text.is_number(given):
        return value(given)
    if isinstance(given, int | float) and name.endswith("bytes"):
        return text.size(given)
    if isinstance(given, int | float) and name.endswith("_ms"):
        return text.duration(given / 1000)
    if isinstance(given, int | float) and name.endswith("rate"):
        return f"{text.rate(given)}/s"
    if isinstance(given, int):
        return text.count(given)
    return value(given)
