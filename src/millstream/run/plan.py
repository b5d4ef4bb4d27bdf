"""What an application needs, worked out without touching anything: topics, view tables, processes and the order between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millstream.app import App
from millstream.capture.table import Table
from millstream.client.admin import INTERNAL
from millstream.run.part import Process
from millstream.settings import MillstreamError, Settings
from millstream.spark.query import Query

DEFAULT_PARTITIONS = 2  # enough to show that order holds per key only, few enough for Spark on a laptop
LOOPBACK = "127.0.0.1:{port}"
EMBEDDED_ONLY = (
    "millstream."  # topic settings of this prefix are the embedded broker's own; Apache Kafka has none of them
)
STORE = "millstream"  # the database of views in the embedded PostgreSQL


@dataclass(frozen=True)
class TopicPlan:
    """A topic that must exist. `role`: why, in one word or two: "topic", "table", "stream", "alert", "internal"."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    role: str = "topic"


@dataclass(frozen=True)
class Plan:
    """All that running an application means.

    topics: in the order of creation.   views: tables in the schema named like the application.
    databases: those of the embedded PostgreSQL, "" when none runs.   processes: without the steps between them.
    alerts: (candidates' topic, the alert's topic, consumer group) of each alert.
    """

    app: str
    topics: tuple[TopicPlan, ...]
    views: tuple[str, ...]
    databases: tuple[str, ...]
    processes: tuple[Process, ...]
    alerts: tuple[tuple[str, str, str], ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the processes."""
        return frozenset(p.name for p in self.processes)


def plan(app: App, settings: Settings, *, file: str, listen: Mapping[str, str] | None = None) -> Plan:
    """Return what running `app` with these settings means.

    file: from where children load the application: "flights.py", "flights.py:app" or a module.
    listen: addresses for "broker" and "console" that the user asked for; loopback and any port by default.
    Raises MillstreamError when the application uses a setting of the embedded broker and the log is Apache Kafka.
    """
    topics = plan_topics(app)
    if settings.kafka:
        _refuse_embedded_settings(topics, settings.kafka.bootstrap)
    views = tuple(q.to for q in app.queries.values() if q.kind == "view")
    databases = embedded_databases(app, settings)
    return Plan(
        app=app.name,
        topics=topics,
        views=views,
        databases=databases,
        processes=_processes(app, settings, file, databases, listen or {}),
        alerts=alerts(app),
    )


def plan_topics(app: App) -> tuple[TopicPlan, ...]:
    """Return every topic that the application reads, writes or keeps for itself."""
    topics = [TopicPlan(name, 1, config, "internal") for name, config in INTERNAL.items()]
    topics += [TopicPlan(t.name, t.partitions, t.config) for t in app.topics.values()]
    compacted = {"cleanup.policy": "compact"}
    topics += [TopicPlan(t.name, DEFAULT_PARTITIONS, compacted, "table") for t in app.tables.values()]
    for query in app.queries.values():
        if query.kind != "view":
            # As many partitions as what it is made from: a result stays as parallel as its cause.
            topics.append(TopicPlan(query.to, query.topics[0].partitions, {}, query.kind))
        if query.kind == "alert":
            topics.append(TopicPlan(candidates(app, query), query.topics[0].partitions, {}, "internal"))
    topics.append(TopicPlan(app.dead_letters, 1, compacted, "dead letters"))
    return tuple(topics)


def alerts(app: App) -> tuple[tuple[str, str, str], ...]:
    """Return (candidates' topic, the alert's topic, the group that reads the candidates) of each alert."""
    found = [q for q in app.queries.values() if q.kind == "alert"]
    return tuple((candidates(app, q), q.to, f"{app.name}.{q.name}.deliver") for q in found)


def candidates(app: App, query: Query) -> str:
    """Return the internal topic in which Spark leaves an alert's rows for `deliver`."""
    return f"_{app.name}.{query.name}"


def sources(app: App) -> dict[str, tuple[Table, ...]]:
    """Return the captured tables by source database, in the order of declaration."""
    found: dict[str, tuple[Table, ...]] = {}
    for table in app.tables.values():
        found[table.source.database] = (*found.get(table.source.database, ()), table)
    return found


def embedded_databases(app: App, settings: Settings) -> tuple[str, ...]:
    """Return the databases that the embedded PostgreSQL must have; none: it is not needed."""
    names = [STORE] if not settings.postgres and any(q.kind == "view" for q in app.queries.values()) else []
    return tuple(names + [name for name in sources(app) if not settings.source(name) and name not in names])


def _processes(
    app: App, settings: Settings, file: str, databases: Sequence[str], listen: Mapping[str, str]
) -> tuple[Process, ...]:
    embedded = frozenset({"postgres"}) if databases else frozenset[str]()
    logged = frozenset({"topics"})
    stored = embedded if STORE in databases else frozenset[str]()
    found: list[Process] = []
    if not settings.kafka:
        where = ("--data", str(settings.data.absolute() / "log"), "--listen", listen.get("broker", LOOPBACK))
        found.append(Process("broker", (sys.executable, "-m", "millstream.broker", *where, "--stop-with-stdin")))
    if databases:
        wanted = tuple(word for name in databases for word in ("--database", name))
        found.append(Process("postgres", _child("postgres", file, *wanted)))
    captures = []
    for database in sources(app):
        needs = logged | (embedded if database in databases else frozenset())
        captures.append(f"capture-{database}")
        found.append(
            Process(
                captures[-1],
                _child("capture", file, "--source", database),
                needs=needs,
                kind="capture",
                ready_within=None,  # a first snapshot takes as long as the tables are large
                doing="reading the tables as they are",
            )
        )
    if app.queries:
        found.append(
            Process(
                "spark",
                _child("spark", file),
                needs=logged | stored | frozenset(captures) | {"jars"},
                ready_within=300.0,
                grace=20.0,
                doing="starting Spark and its queries",
            )
        )
    if alerts(app):
        found.append(Process("deliver", _child("deliver", file), needs=logged))
    console = listen.get("console", LOOPBACK)
    page = (sys.executable, "-m", "millstream.serve", file, "--listen", console)
    found.append(Process("serve", page, needs=logged | stored))
    return tuple(found)


def _child(kind: str, file: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "millstream.run.child", kind, file, *options)


def _refuse_embedded_settings(topics: Sequence[TopicPlan], bootstrap: str) -> None:
    found = [f"{name} (topic {t.name!r})" for t in topics for name in t.config if name.startswith(EMBEDDED_ONLY)]
    if found:
        raise MillstreamError(
            f"the log is Apache Kafka at {bootstrap}, which has no {', '.join(found)}: only the embedded broker does."
            " Remove the setting, or run without --kafka."
        )
