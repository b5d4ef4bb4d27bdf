"""The graph of an application: all that it needs, worked out from what it declares, without touching anything.

`plan`, `run`, the console, the command line, the testing kit and Spark read this: no name, topic or process is worked out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millstream.app.application import App
from millstream.app.inputs import Table
from millstream.app.names import DEAD_LETTERS, dead_letters, group
from millstream.app.outputs import DELIVER, POSTGRESQL
from millstream.app.process import TOPICS, Process
from millstream.app.query import Delivery, Query, StoredTable
from millstream.app.topics import COMPACTED, INTERNAL, NeededTopic
from millstream.event import fields
from millstream.settings import MillstreamError, Settings

LOOPBACK = "127.0.0.1:{port}"
STORE = "millstream"  # the database of views in the embedded PostgreSQL
EMBEDDED_ONLY = (
    "millstream."  # topic settings of this prefix are the embedded broker's own; Apache Kafka has none of them
)


@dataclass(frozen=True)
class Node:
    """A box of the graph. id: "<place>:<name>".   place: source, topic, query or result.   kind: what people call it."""

    id: str
    place: str
    kind: str
    name: str


@dataclass(frozen=True)
class Graph:
    """All that running an application means.

    topics: in the order of creation.   tables: what queries keep in stores.   captured: the tables that follow databases.
    databases: those of the embedded PostgreSQL.
    processes: in no order; their `needs` make one.   deliveries: what leaves event by event.
    groups: the consumer groups that hold the positions of its queries and deliveries.
    nodes, edges: sources, topics, queries and results, and what flows from which to which, by the nodes' ids.
    """

    app: str
    topics: tuple[NeededTopic, ...] = ()
    tables: tuple[StoredTable, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    databases: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    captured: tuple[Table, ...] = ()
    groups: tuple[str, ...] = ()

    def topic(self, name: str) -> NeededTopic:
        """Return a topic by its name."""
        return next(t for t in self.topics if t.name == name)

    @property
    def names(self) -> frozenset[str]:
        """The names of the processes."""
        return frozenset(p.name for p in self.processes)

    @property
    def extras(self) -> tuple[str, ...]:
        """The optional parts of the installation that its processes need."""
        return tuple(sorted({extra for p in self.processes for extra in p.extras}))


def graph(app: App, settings: Settings, *, listen: Mapping[str, str] | None = None) -> Graph:
    """Return all that running `app` with these settings means.

    listen: addresses for "broker" and "console" that the user asked for; loopback and any port by default.
    Raises MillstreamError when the application uses a setting of the embedded broker and the log is Apache Kafka.
    """
    queries = tuple(app.queries.values())
    topics = tuple(_topics(app))
    if settings.kafka:
        _refuse_embedded_settings(topics, settings.kafka.bootstrap)
    tables = tuple(t for q in queries for t in q.output.tables(app.name, q))
    deliveries = tuple(d for q in queries for d in q.output.deliveries(app.name, q))
    databases = tuple(_databases(app, settings, tables))
    nodes, edges = _drawing(app)
    return Graph(
        app=app.name,
        topics=topics,
        tables=tables,
        deliveries=deliveries,
        databases=databases,
        processes=tuple(_processes(app, settings, tables, deliveries, databases, listen or {})),
        nodes=nodes,
        edges=edges,
        captured=tuple(app.tables.values()),
        groups=tuple(_groups(app)),
    )


def describe(app: App) -> dict[str, Any]:
    """Return what the application declares as plain JSON-able values: what a process that does not load it knows of it."""
    nodes, edges = _drawing(app)
    return {
        "app": app.name,
        "dead_letters": dead_letters(app.name),
        "inputs": [
            {
                "name": t.name,
                "kind": t.kind,
                "key": t.key,
                "event_time": t.event_time,
                "lateness_s": t.lateness.total_seconds(),
                "partitions": t.partitions,
                "config": dict(t.config),
                "format": t.format.name,
                "fields": [{"name": f.name, "kind": f.kind, "nullable": f.nullable} for f in fields(t.event)],
            }
            for t in app.topics.values()
        ],
        "tables": [
            {"name": t.name, "source": t.source.kind, "database": t.source.database, "table": t.source.describe()}
            for t in app.tables.values()
        ],
        "queries": [_described(app, q) for q in app.queries.values()],
        "groups": list(_groups(app)),
        "topics": [{"name": t.name, "role": t.role, "partitions": t.partitions} for t in _topics(app)],
        "nodes": [asdict(n) for n in nodes],
        "edges": [list(edge) for edge in edges],
    }


def _groups(app: App) -> Iterable[str]:
    for query in app.queries.values():
        yield group(app.name, query.name)
        yield from (d.group for d in query.output.deliveries(app.name, query))
    if app.queries and app.topics:
        yield group(app.name, DEAD_LETTERS)


def _described(app: App, query: Query) -> dict[str, Any]:
    output = query.output
    return {
        "name": query.name,
        "kind": output.kind,
        "inputs": [i.name for i in query.inputs],
        "to": output.to,
        "key": list(output.key),
        "topics": [t.name for t in output.topics(app.name, query) if t.role != "internal"],
        "tables": [t.name for t in output.tables(app.name, query)],
        "group": group(app.name, query.name),
        "realtime": query.realtime,
        "every_s": query.every.total_seconds(),
    }


def _topics(app: App) -> Iterable[NeededTopic]:
    """Every topic that the application reads, writes or keeps for itself; one that a query writes and another reads, once."""
    found: dict[str, NeededTopic] = {}
    for topic in (
        *(NeededTopic(name, 1, config, "internal") for name, config in INTERNAL.items()),
        *(topic.topic for topic in app.topics.values()),
        *(table.topic for table in app.tables.values()),
        *(t for q in app.queries.values() for t in q.output.topics(app.name, q)),
        NeededTopic(dead_letters(app.name), 1, COMPACTED, "dead letters"),
    ):
        found.setdefault(topic.name, topic)
    return found.values()


def _databases(app: App, settings: Settings, tables: Iterable[StoredTable]) -> Iterable[str]:
    wanted = [STORE] if not settings.postgres and any(t.store == POSTGRESQL for t in tables) else []
    wanted += [t.source.embedded_database(settings) for t in app.tables.values()]
    return dict.fromkeys(name for name in wanted if name)


def _processes(
    app: App,
    settings: Settings,
    tables: tuple[StoredTable, ...],
    deliveries: tuple[Delivery, ...],
    databases: tuple[str, ...],
    listen: Mapping[str, str],
) -> Iterable[Process]:
    stored = frozenset({"postgres"}) if STORE in databases else frozenset[str]()
    if not settings.kafka:
        where = listen.get("broker", LOOPBACK)
        yield Process(
            "broker",
            module="millstream.broker",
            arguments=("--data", str(settings.data.absolute() / "log"), "--listen", where, "--stop-with-stdin"),
            program=True,
            gets=frozenset(),
            provides=frozenset({"kafka"}),
        )
    if databases:
        yield Process(
            "postgres",
            module="millstream.postgresql.process",
            arguments=databases,
            gets=frozenset(),
            provides=frozenset({"postgres"}),
            extras=frozenset({"postgresql"}),
        )
    stored_there = any(t.store == POSTGRESQL for t in tables)
    captures = {p.name: p for p in (t.source.process(settings) for t in app.tables.values())}
    yield from captures.values()
    if app.queries:
        yield Process(
            "spark",
            module="millstream.spark.process",
            needs=frozenset({TOPICS, *captures, *stored}),
            gets=frozenset({"kafka", "spark", *({"postgres"} if tables else ())}),
            ready_within=300.0,
            grace=20.0,
            doing="starting Spark and its queries",
            prepare="millstream.spark.jars",
            extras=frozenset({"spark", *({"postgresql"} if stored_there else ())}),
        )
    if deliveries:
        yield DELIVER
    yield Process(
        "serve",
        module="millstream.serve.process",
        arguments=(listen.get("console", LOOPBACK), *(("shared",) if settings.kafka else ())),
        needs=frozenset({TOPICS}) | stored,
        gets=frozenset({"kafka", "postgres"}),
        provides=frozenset({"console"}),
        extras=frozenset({"postgresql"} if stored_there else ()),
    )


def _drawing(app: App) -> tuple[tuple[Node, ...], tuple[tuple[str, str], ...]]:
    nodes: dict[str, Node] = {}
    edges: list[tuple[str, str]] = []

    def node(place: str, kind: str, name: str) -> str:
        return nodes.setdefault(f"{place}:{name}", Node(f"{place}:{name}", place, kind, name)).id

    for table in app.tables.values():
        source = node("source", table.source.kind, table.source.database)
        edges.append((source, node("topic", table.kind, table.name)))
    for topic in app.topics.values():
        node("topic", topic.kind, topic.name)
    for query in app.queries.values():
        this = node("query", query.output.kind, query.name)
        edges += [(f"topic:{i.name}", this) for i in query.inputs]
        for written in query.output.topics(app.name, query):
            if written.role != "internal":
                edges.append((this, node("topic", written.role, written.name)))
        for kept in query.output.tables(app.name, query):
            edges.append((this, node("result", query.output.kind, kept.name)))
        if not any(source == this for source, _ in edges):
            edges.append((this, node("result", query.output.kind, query.output.to)))
    return tuple(nodes.values()), tuple(edges)


def _refuse_embedded_settings(topics: Iterable[NeededTopic], bootstrap: str) -> None:
    found = [f"{name} (topic {t.name!r})" for t in topics for name in t.config if name.startswith(EMBEDDED_ONLY)]
    if found:
        raise MillstreamError(
            f"the log is Apache Kafka at {bootstrap}, which has no {', '.join(found)}: only the embedded broker does."
            " Remove the setting, or run without --kafka."
        )
