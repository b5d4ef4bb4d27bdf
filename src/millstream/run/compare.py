"""What running an application would create or change, compared with the log and the database as they are. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

from psycopg.conninfo import make_conninfo
from psycopg.sql import Identifier

from millstream.app.graph import STORE, Graph
from millstream.app.query import StoredTable
from millstream.app.topics import NeededTopic
from millstream.client.admin import TopicFacts, describe_topics, topic_names
from millstream.client.wait import wait_for_kafka
from millstream.postgresql.connect import Connection, address, connect
from millstream.run import runfile
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.stores import checkpoints
from millstream.stores.ownership import decide
from millstream.stores.store import Claim

State = Literal["create", "kept", "differs", "refused", "unknown"]
_PATIENCE = 3.0  # seconds for a log to answer; a plan is for a human who waits


@dataclass(frozen=True)
class Change:
    """A topic or a view's table, and what running the application means for it.

    state: "create": it is missing and would be made; "kept": it is there, as it should be; "differs": it is there, otherwise than
    declared, and would be left so; "refused": `run` would not touch it, and its query would fail for the reason in `detail`;
    "unknown": nothing to compare with, so it would be made if it is missing.
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
    views, store = _look_at_store(replace(settings, postgres=postgres), graph, embedded=not settings.postgres)
    return Comparison(log, store, (*compare_topics(graph.topics, topics), *views))


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


def _look_at_store(settings: Settings, graph: Graph, *, embedded: bool) -> tuple[list[Change], Place]:
    unknown = [Change("table", f"{t.app}.{t.name}", "unknown") for t in graph.tables]
    if not settings.postgres:
        return unknown, Place("embedded", True, "not running")
    where = f"{'embedded, ' if embedded else ''}{address(settings.postgres)}"
    there = make_conninfo(settings.postgres, dbname=STORE) if embedded else settings.postgres
    try:
        with connect(there, connect_timeout=int(_PATIENCE), autocommit=True) as connection:
            return [_table(connection, settings, table) for table in graph.tables], Place(where, embedded)
    except MillstreamError as error:
        return unknown, Place(where, embedded, str(error))


def _table(connection: Connection, settings: Settings, table: StoredTable) -> Change:
    name = f"{table.app}.{table.name}"
    claim = Claim.of(settings, table.app, table.query)
    owner = checkpoints.owner(connection, table.app, table.name)
    exists = checkpoints.exists(connection, table.app, table.name)
    filled = exists and owner is None and checkpoints.filled(connection, Identifier(table.app, table.name))
    try:
        decide(name, owner, claim, None, filled=filled)
    except MillstreamError as refusal:
        return Change("table", name, "refused", str(refusal))
    return Change("table", name, "kept" if exists else "create")
