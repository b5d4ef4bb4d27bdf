"""What running an application would create or change, compared with the log and the database as they are. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from millstream.app.graph import STORE, Graph
from millstream.app.topics import NeededTopic
from millstream.client.admin import TopicFacts, describe_topics, topic_names
from millstream.client.wait import wait_for_kafka
from millstream.postgresql.connect import address, connect
from millstream.run import runfile
from millstream.settings import Kafka, MillstreamError, Settings

State = Literal["create", "kept", "differs", "unknown"]
_PATIENCE = 3.0  # seconds for a log to answer; a plan is for a human who waits


@dataclass(frozen=True)
class Change:
    """A topic or a view's table, and what running the application means for it.

    state: "create": it is missing and would be made; "kept": it is there, as it should be; "differs": it is there, otherwise than
    declared, and would be left so; "unknown": nothing to compare with, so it would be made if it is missing.
    """

    kind: Literal["topic", "table"]
    name: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """A log or a database: its address in words, and why it could not be looked at, if so."""

    address: str
    embedded: bool
    problem: str = ""


@dataclass(frozen=True)
class Comparison:
    """All changes, and where they would happen."""

    log: Place
    store: Place
    changes: tuple[Change, ...]


def compare(graph: Graph, settings: Settings) -> Comparison:
    """Look at the log and the database that the settings name, or that run in the data folder, and compare. Never raises for
    what cannot be reached: that is said in the result."""
    running = runfile.current(settings.data)
    embedded = running.addresses if running else {}
    kafka = settings.kafka or (Kafka(embedded["kafka"]) if "kafka" in embedded else None)
    postgres = settings.postgres or embedded.get("postgres", "")
    topics, log = _look_at_log(kafka, {t.name for t in graph.topics}, embedded=settings.kafka is None)
    tables, store = _look_at_store(postgres, graph.app, embedded=not settings.postgres)
    views = [_table(graph.app, table.name, tables) for table in graph.tables]
    return Comparison(log, store, tuple(compare_topics(graph.topics, topics)) + tuple(views))


def compare_topics(plans: Iterable[NeededTopic], facts: Mapping[str, TopicFacts] | None) -> list[Change]:
    """Compare what is wanted with what is there; None: nobody could look."""
    return [_topic(plan, facts) for plan in plans]


def _topic(plan: NeededTopic, facts: Mapping[str, TopicFacts] | None) -> Change:
    wanted = [f"{plan.partitions} partition{'s' * (plan.partitions != 1)}"]
    wanted += [f"{name}={value}" for name, value in plan.config.items()]
    if facts is None or plan.name not in facts:
        return Change("topic", plan.name, "unknown" if facts is None else "create", ", ".join(wanted))
    there = facts[plan.name]
    found = []
    if there.partitions != plan.partitions:
        found.append(f"{there.partitions} partitions, declared {plan.partitions}")
    for name, value in plan.config.items():
        if _normal(there.config.get(name, "")) != _normal(value):
            found.append(f"{name}={there.config.get(name, 'the default')}, declared {value}")
    return Change("topic", plan.name, "differs" if found else "kept", "; ".join(found))


def _normal(value: str) -> tuple[str, ...]:
    """Lists of words are equal in any order."""
    return tuple(sorted(word.strip() for word in value.split(",")))


def _table(app: str, view: str, tables: Set[str] | None) -> Change:
    state: State = "unknown" if tables is None else "kept" if view in tables else "create"
    return Change("table", f"{app}.{view}", state)


def _look_at_log(kafka: Kafka | None, names: Set[str], *, embedded: bool) -> tuple[dict[str, TopicFacts] | None, Place]:
    if kafka is None:
        return None, Place("embedded", True, "not running")
    where = f"{'embedded, ' if embedded else ''}{kafka.bootstrap}"
    try:
        wait_for_kafka(kafka, _PATIENCE)
        there = names & set(topic_names(kafka))
        facts = {t.name: t for t in describe_topics(kafka, sorted(there))} if there else {}
    except MillstreamError as error:
        return None, Place(where, embedded, str(error))
    return facts, Place(where, embedded)


def _look_at_store(conninfo: str, app: str, *, embedded: bool) -> tuple[set[str] | None, Place]:
    if not conninfo:
        return None, Place("embedded", True, "not running")
    where = f"{'embedded, ' if embedded else ''}{address(conninfo)}"
    try:
        with connect(conninfo, database=STORE if embedded else None, connect_timeout=int(_PATIENCE)) as connection:
            rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [app]).fetchall()
    except MillstreamError as error:
        return None, Place(where, embedded, str(error))
    return {str(row[0]) for row in rows}, Place(where, embedded)
