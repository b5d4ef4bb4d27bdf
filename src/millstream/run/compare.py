"""What running an application would create or change, compared with the log and the databases as they are. Changes nothing.

Of the embedded PostgreSQL of an application that has ended the server is started for a moment, since only it can read its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from millstream.app.graph import STORE, Graph
from millstream.app.inputs import Table
from millstream.app.query import StoredTable
from millstream.app.sources import how_to_fill
from millstream.app.topics import NeededTopic
from millstream.client.admin import TopicFacts, describe_topics, topic_names
from millstream.client.wait import wait_for_kafka
from millstream.run import runfile
from millstream.run.lock import Lock
from millstream.settings import Kafka, MillstreamError, Settings

if TYPE_CHECKING:
    from millstream.capture.source import SourceTable
    from millstream.postgresql.connect import Connection

State = Literal["create", "kept", "differs", "refused", "unknown"]
_PATIENCE = 3.0  # seconds for a log to answer; a plan is for a human who waits
_NOT_RUNNING = "not running"


@dataclass(frozen=True)
class Change:
    """A topic, a view's table or a captured table, and what running the application means for it.

    state: "create": it is missing and would be made; "kept": it is there, as it should be; "differs": it is there, otherwise than
    declared, and would be left so; "refused": `run` would not touch it, and what needs it would fail for the reason in `detail`;
    "unknown": nothing to compare with, so it would be made if it is missing.
    """

    kind: Literal["topic", "table", "captured table"]
    name: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """A log or a database: its address in words, why it could not be looked at, if so, and what to do about what is refused."""

    address: str
    embedded: bool
    problem: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Comparison:
    """All changes, and where they would happen.

    sources: the databases of captured tables, by their names in the settings.
    columns: of each captured table's topic, as a value of `_millstream.schemas`, or why they are not known.
    """

    log: Place
    store: Place
    changes: tuple[Change, ...]
    sources: Mapping[str, Place] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether everything that is given an address could be looked at, and `run` would refuse nothing of it."""
        places = (self.log, self.store, *self.sources.values())
        unseen = any(place.problem and not place.embedded for place in places)
        return not unseen and all(change.state != "refused" for change in self.changes)


def compare(graph: Graph, settings: Settings) -> Comparison:
    """Look at the log and the databases that the settings name, or that run in the data folder, and compare.

    Never raises for what cannot be reached: that is said in the result.
    """
    running = runfile.current(settings.data)
    kafka = settings.kafka or (Kafka(running.addresses["kafka"]) if running and "kafka" in running.addresses else None)
    topics, log = _look_at_log(kafka, {t.name for t in graph.topics}, embedded=settings.kafka is None)
    with _embedded_postgres(settings, graph) as (server, problem):
        views, store = _look_at_store(settings, graph, server, problem)
        found = [_look_at_source(settings, graph, name, of, server, problem) for name, of in _captured(graph).items()]
    changes = (*compare_topics(graph.topics, topics), *views, *(c for one in found for c in one.changes))
    columns = {topic: known for one in found for topic, known in one.columns.items()}
    return Comparison(log, store, changes, {one.name: one.place for one in found}, columns)


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
        return None, Place("embedded", True, _NOT_RUNNING)
    where = f"{'embedded, ' if embedded else ''}{kafka.bootstrap}"
    try:
        wait_for_kafka(kafka, _PATIENCE)
        there = names & set(topic_names(kafka))
        facts = {t.name: t for t in describe_topics(kafka, sorted(there))} if there else {}
    except MillstreamError as error:
        return None, Place(where, embedded, str(error))
    return facts, Place(where, embedded)


@contextmanager
def _embedded_postgres(settings: Settings, graph: Graph) -> Iterator[tuple[str, str]]:
    """The address of the embedded server, and why there is none: one that runs, or that is started while this is open."""
    running = runfile.current(settings.data)
    folder = settings.data / "postgres"
    if running or not graph.databases or not folder.is_dir():
        yield (running.addresses.get("postgres", "") if running else ""), _NOT_RUNNING
        return
    from millstream.postgresql.server import Server

    lock = None
    try:
        lock = Lock(settings.data)  # so that no run begins meanwhile
        server = Server(folder)
        server.start()
    except MillstreamError as error:
        if lock is not None:
            lock.release()
        yield "", str(error)
        return
    try:
        yield server.conninfo("postgres"), ""
    finally:
        server.stop()
        lock.release()


def _look_at_store(settings: Settings, graph: Graph, server: str, problem: str) -> tuple[list[Change], Place]:
    unknown = [Change("table", f"{t.app}.{t.name}", "unknown") for t in graph.tables]
    embedded = not settings.postgres
    if not graph.tables or (embedded and not server):
        return unknown, Place("embedded", True, problem or _NOT_RUNNING) if embedded else Place("not needed", False)
    from millstream.postgresql.connect import address, connect, with_database

    there = with_database(server, STORE) if embedded else settings.postgres
    where = f"{'embedded, ' if embedded else ''}{address(there)}"
    try:
        with connect(there, connect_timeout=int(_PATIENCE), autocommit=True) as connection:
            return [_table(connection, settings, table) for table in graph.tables], Place(where, embedded)
    except MillstreamError as error:
        return unknown, Place(where, embedded, str(error))


def _table(connection: Connection, settings: Settings, table: StoredTable) -> Change:
    from psycopg.sql import Identifier

    from millstream.stores import checkpoints
    from millstream.stores.ownership import decide
    from millstream.stores.store import Claim

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


@dataclass(frozen=True)
class _Looked:
    """What was found in the database of captured tables."""

    name: str
    place: Place
    changes: tuple[Change, ...]
    columns: Mapping[str, Any]


def _captured(graph: Graph) -> dict[str, list[Table]]:
    """The captured tables by the names of their databases."""
    found: dict[str, list[Table]] = {}
    for table in graph.captured:
        found.setdefault(table.source.database, []).append(table)
    return found


def _look_at_source(
    settings: Settings, graph: Graph, name: str, tables: Sequence[Table], server: str, problem: str
) -> _Looked:
    """Look at the captured tables of one database, over the module of the process that captures them."""
    source = tables[0].source
    embedded = source.embedded_database(settings)
    place = Place("embedded" if embedded else source.kind, bool(embedded))
    try:
        if embedded and (not server or not _has_database(server, embedded)):
            if not server and (settings.data / "postgres").is_dir():
                return _unseen(name, replace(place, problem=problem), tables)
            told = {t.name: MillstreamError(f"there is no table {t.source.describe()} yet.") for t in tables}
            return _looked(name, place, tables, told)
        module = import_module(source.process(settings).module)
        if not hasattr(module, "tables"):
            return _unseen(name, replace(place, problem="this kind of source does not tell what it has"), tables)
        given = replace(settings, postgres=server) if embedded else settings
        if embedded:
            from millstream.postgresql.connect import with_database

            given = replace(given, sources={**settings.sources, name: with_database(server, embedded)})
        return _looked(name, place, tables, module.tables(graph.app, given, tables))
    except MillstreamError as error:
        return _unseen(name, replace(place, problem=str(error)), tables)


def _has_database(server: str, name: str) -> bool:
    from millstream.postgresql.connect import connect

    with connect(server, connect_timeout=int(_PATIENCE), autocommit=True) as connection:
        return bool(connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchall())


def _looked(
    name: str, place: Place, tables: Sequence[Table], found: Mapping[str, SourceTable | MillstreamError]
) -> _Looked:
    changes, columns = [], dict[str, Any]()
    for table in tables:
        known = found[table.name]
        full = f"{name}: {table.source.describe()}"
        if isinstance(known, MillstreamError):
            changes.append(Change("captured table", full, "refused", str(known)))
            columns[table.name] = str(known)
        else:
            changes.append(Change("captured table", full, "kept"))
            described = [c.describe() for c in known.columns]
            columns[table.name] = {"topic": table.name, "columns": described, "key": list(known.key)}
    if place.embedded and any(change.state == "refused" for change in changes):
        place = replace(place, advice=how_to_fill(name))
    return _Looked(name, place, tuple(changes), columns)


def _unseen(name: str, place: Place, tables: Sequence[Table]) -> _Looked:
    changes = tuple(
        Change("captured table", f"{name}: {t.source.describe()}", "unknown", place.problem) for t in tables
    )
    return _Looked(name, place, changes, {t.name: f"{place.address}: {place.problem}" for t in tables})
