"""The application's graph for the page: sources, topics, queries and results as boxes, with what each is doing now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.serve import text
from millstream.serve.layout import Drawing, draw
from millstream.serve.state import State

SOURCE, LOG, QUERY, RESULT = range(4)
_HEADINGS = {SOURCE: "Sources", LOG: "Log", QUERY: "Spark", RESULT: "Results"}


@dataclass(frozen=True)
class Node:
    """A box. kind: what it is (its colour and sign); tone: "on", "idle", "busy", "warn" or "bad", what it is doing."""

    id: str
    kind: str
    name: str
    note: str
    tone: str
    column: int
    title: str = ""


@dataclass(frozen=True)
class Graph:
    """Boxes, lines and where they stand. flowing: the lines along which events move now."""

    nodes: Mapping[str, Node]
    drawing: Drawing
    flowing: frozenset[tuple[str, str]]
    headings: Sequence[tuple[float, str]]


def graph(description: Mapping[str, Any], state: State) -> Graph:
    """Return the graph of an application (`App.describe()`) with the state of its parts."""
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []
    flowing: set[tuple[str, str]] = set()
    topics = {t.name: t for t in state.topics}
    queries = {q.name: q for q in state.queries}
    views = {v.name: v for v in state.views}

    def line(source: str, target: str, rate: float) -> None:
        edges.append((source, target))
        if rate > 0:
            flowing.add((source, target))

    def topic(name: str, kind: str, column: int) -> None:
        found = topics.get(name)
        note = f"{text.count(found.end)} events · {text.rate(found.rate)}/s" if found else "not there yet"
        if found and kind == "table":
            note = f"{text.count(found.end)} changes · {text.rate(found.rate)}/s"
        colour = "idle" if not found or found.rate == 0 else "on"
        nodes[f"topic:{name}"] = Node(f"topic:{name}", kind, name, note, colour, column, f"topic {name}")

    captures = {c.name: c for c in state.captures}
    for table in description["tables"]:
        source = f"source:{table['database']}"
        if source not in nodes:
            capture = captures.get(table["database"])
            nodes[source] = Node(
                source, "database", table["database"], *_capture(capture.state if capture else "waiting"), SOURCE
            )
        topic(table["name"], "table", LOG)
        line(source, f"topic:{table['name']}", _rate(topics, table["name"]))
    for described in description["topics"]:
        topic(described["name"], "topic", LOG)
    for replay in state.replays:
        colour = {"running": "on", "changing a plane": "on", "failed": "bad", "loading": "busy"}.get(
            replay.state, "idle"
        )
        nodes[f"source:{replay.name}"] = Node(
            f"source:{replay.name}", "producer", replay.name, f"replay · {replay.state}", colour, SOURCE
        )
        for described in description["topics"]:
            line(f"source:{replay.name}", f"topic:{described['name']}", _rate(topics, described["name"]))

    for described in description["queries"]:
        name, kind, to = described["name"], described["kind"], described["to"]
        query = queries[name]
        mode = "real-time" if described["realtime"] else "micro-batch"
        note = f"{kind} · {mode}" if query.lag is None else f"{mode} · lag {text.short(query.lag)}"
        nodes[f"query:{name}"] = Node(
            f"query:{name}", f"query-{kind}", name, query.state if query.state != "running" else note,
            tone(query.state), QUERY, f"{kind} {name}",
        )  # fmt: skip
        for given in described["inputs"]:
            line(f"topic:{given}", f"query:{name}", _rate(topics, given) if query.state == "running" else 0)
        if kind == "view":
            view = views.get(to)
            rows = "no rows yet" if not view or not view.columns else _rows(view.total, view.more)
            nodes[f"view:{to}"] = Node(f"view:{to}", "view", to, f"table · {rows}", tone(query.state, True), RESULT)
            line(f"query:{name}", f"view:{to}", query.rows_per_second or 0)
        else:
            topic(to, "alert" if kind == "alert" else "topic", RESULT)
            line(f"query:{name}", f"topic:{to}", _rate(topics, to))
    if description["queries"]:
        dead = state.dead_letters
        amount = f"{'≥ ' if dead.at_least else ''}{text.count(dead.distinct)} unreadable event" + (
            "" if dead.distinct == 1 else "s"
        )
        nodes["dead"] = Node("dead", "dead", dead.topic, amount, "warn" if dead.distinct else "idle", RESULT)
        for described in description["topics"]:
            if any(described["name"] in q["inputs"] for q in description["queries"]):
                edges.append((f"topic:{described['name']}", "dead"))

    drawing = draw(tuple(nodes), edges, {n.id: n.column for n in nodes.values()})
    return Graph(nodes, drawing, frozenset(flowing), _headings(nodes, drawing))


def tone(state: str, quiet: bool = False) -> str:
    """Return the tone of a part's state. quiet: a running part is calm, because its rows speak for it."""
    if state in ("failed", "error"):
        return "bad"
    if state in ("restarting", "reconnecting"):
        return "warn"
    if state in ("starting", "snapshot", "snapshotting", "loading", "resuming", "stopping"):
        return "busy"
    return "on" if state in ("running", "ready", "streaming", "following", "changing a plane") and not quiet else "idle"


def _capture(state: str) -> tuple[str, str]:
    return f"PostgreSQL · {state}", tone(state)


def _rate(topics: Mapping[str, Any], name: str) -> float:
    found = topics.get(name)
    return float(found.rate) if found else 0.0


def _rows(total: int, more: bool) -> str:
    return f"{text.count(total)}{'+' if more else ''} row{'' if total == 1 else 's'}"


def _headings(nodes: Mapping[str, Node], drawing: Drawing) -> list[tuple[float, str]]:
    """Name each column of the drawing that holds boxes of one kind of place."""
    columns: dict[float, set[int]] = {}
    for node in nodes.values():
        columns.setdefault(drawing.boxes[node.id].x, set()).add(node.column)
    return [(x, _HEADINGS[min(kinds)]) for x, kinds in sorted(columns.items()) if len(kinds) == 1]
