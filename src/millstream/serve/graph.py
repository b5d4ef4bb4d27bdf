"""The application's graph for the page: sources, topics, queries and results as boxes, with what each is doing now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream.serve import text
from millstream.serve.layout import Drawing, draw
from millstream.serve.state import DeadLetters, PartState, State

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
    """Return the graph of an application (what `app.graph.describe` returns) with the state of its parts."""
    return _Drawer(description, state).graph()


class _Drawer:
    """Turns the boxes of a description into nodes with what each is doing: a method for each place."""

    def __init__(self, description: Mapping[str, Any], state: State) -> None:
        self._description = description
        self._state = state
        self._topics = {t.name: t for t in state.topics}
        self._queries = {q.name: q for q in state.queries}
        self._read = {source for source, _ in description["edges"]}

    def graph(self) -> Graph:
        make = {"source": self._source, "topic": self._topic, "query": self._query, "result": self._result}
        nodes = {n["id"]: make[n["place"]](n["id"], n["kind"], n["name"]) for n in self._description["nodes"]}
        edges = [(source, target) for source, target in self._description["edges"]]
        for replay in self._state.replays:
            nodes[f"source:{replay.name}"] = _replay(replay)
            edges += [(f"source:{replay.name}", f"topic:{t['name']}") for t in self._description["inputs"]]
        if self._queries:
            nodes["dead"] = _dead(self._state.dead_letters)
            read = (f"topic:{t['name']}" for t in self._description["inputs"])
            edges += [(topic, "dead") for topic in read if topic in self._read]
        flowing = frozenset(edge for edge in edges if edge[1] != "dead" and self._flows(*edge))
        drawing = draw(tuple(nodes), edges, {n.id: n.column for n in nodes.values()})
        return Graph(nodes, drawing, flowing, _headings(nodes, drawing))

    def _flows(self, source: str, target: str) -> bool:
        """Whether events move along a line now: a topic's do when it grows and its reader runs."""
        for end in (target, source):
            place, _, name = end.partition(":")
            if place == "query" and end == target and self._queries[name].state != "running":
                return False
            if place == "topic":
                found = self._topics.get(name)
                return found is not None and found.rate > 0
        return (self._queries[source.partition(":")[2]].rows_per_second or 0) > 0

    def _source(self, id: str, kind: str, name: str) -> Node:
        capture = next((c for c in self._state.captures if c.name == name), None)
        state = capture.state if capture else "waiting"
        return Node(id, "database", name, f"{kind} · {state}", tone(state), SOURCE)

    def _topic(self, id: str, kind: str, name: str) -> Node:
        found = self._topics.get(name)
        counted = "changes" if kind == "table" else "events"
        note = f"{text.count(found.end)} {counted} · {text.rate(found.rate)}/s" if found else "not there yet"
        colour = "idle" if not found or found.rate == 0 else "on"
        column = LOG if id in self._read or kind in ("topic", "table") else RESULT
        return Node(id, "topic" if kind == "output" else kind, name, note, colour, column, f"topic {name}")

    def _query(self, id: str, kind: str, name: str) -> Node:
        query = self._queries[name]
        mode = "real-time" if query.mode == "realtime" else "micro-batch"
        note = f"{kind} · {mode}" if query.lag is None else f"{mode} · lag {text.short(query.lag)}"
        if query.state != "running":
            note = query.state
        return Node(id, f"query-{kind}", name, note, tone(query.state), QUERY, f"{kind} {name}")

    def _result(self, id: str, kind: str, name: str) -> Node:
        view = next((v for v in self._state.views if v.name == name), None)
        rows = "no rows yet" if not view or not view.columns else _rows(view.total, view.more)
        query = next(self._queries[s.partition(":")[2]] for s, target in self._description["edges"] if target == id)
        return Node(id, kind, name, f"table · {rows}" if view else kind, tone(query.state, True), RESULT)


def _replay(replay: PartState) -> Node:
    colour = {"running": "on", "changing a plane": "on", "failed": "bad", "loading": "busy"}.get(replay.state, "idle")
    return Node(f"source:{replay.name}", "producer", replay.name, f"replay · {replay.state}", colour, SOURCE)


def _dead(dead: DeadLetters) -> Node:
    amount = f"{'≥ ' if dead.at_least else ''}{text.count(dead.distinct)} unreadable event"
    amount += "" if dead.distinct == 1 else "s"
    return Node("dead", "dead", dead.topic, amount, "warn" if dead.distinct else "idle", RESULT)


def tone(state: str, quiet: bool = False) -> str:
    """Return the tone of a part's state. quiet: a running part is calm, because its rows speak for it."""
    if state in ("failed", "error"):
        return "bad"
    if state in ("restarting", "reconnecting"):
        return "warn"
    if state in ("starting", "snapshot", "snapshotting", "loading", "resuming", "stopping"):
        return "busy"
    return "on" if state in ("running", "ready", "streaming", "following", "changing a plane") and not quiet else "idle"


def _rows(total: int, more: bool) -> str:
    return f"{text.count(total)}{'+' if more else ''} row{'' if total == 1 else 's'}"


def _headings(nodes: Mapping[str, Node], drawing: Drawing) -> list[tuple[float, str]]:
    """Name each column of the drawing that holds boxes of one kind of place."""
    columns: dict[float, set[int]] = {}
    for node in nodes.values():
        columns.setdefault(drawing.boxes[node.id].x, set()).add(node.column)
    return [(x, _HEADINGS[min(kinds)]) for x, kinds in sorted(columns.items()) if len(kinds) == 1]
