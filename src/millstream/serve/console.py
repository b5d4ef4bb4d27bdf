"""The console's state: puts together what was declared, what the parts report, and what was read from the log and the views."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.app.names import DEAD_LETTERS, group
from millstream.monitor.status import Follower
from millstream.serve.activity import Activity
from millstream.serve.known import judged
from millstream.serve.letters import Letters
from millstream.serve.positions import Positions, Reading
from millstream.serve.state import (
    Connection,
    DeadLetters,
    GroupState,
    PartState,
    QueryState,
    Role,
    State,
    TopicLag,
    TopicState,
    Totals,
    ViewState,
)
from millstream.serve.text import is_number
from millstream.settings import Kafka

if TYPE_CHECKING:
    from millstream.serve.views import Views

MAX_TOPICS = 300  # topics and groups that the page lists; `millstream topics` lists them all
_JOIN_S = 2.0  # how long threads that wait for silent servers may hold up the end; all are daemons

Facts = Mapping[tuple[str, str], Mapping[str, Any]]


class Console:
    """Owns the readers of one application. description: what `app.graph.describe` returns.

    conninfo: of the store of views, "" for none.   groups: the consumer groups to look at; None for every group of the log.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        kafka: Kafka,
        conninfo: str,
        stop: threading.Event,
        on_news: Callable[[], None] = lambda: None,
        groups: Sequence[str] | None = None,
    ) -> None:
        self.description = description
        self.activity = Activity(stop)
        self._positions = Positions(kafka, self.activity, groups)
        self._follower = Follower(kafka, description["app"])
        self._views: Views | None = None
        if keys := {table: q["key"] for q in description["queries"] for table in q["tables"]}:
            from millstream.serve.views import Views  # an application without views needs no database driver

            self._views = Views(description["app"], conninfo, keys, self.activity)
        self._letters = Letters(
            kafka,
            [t["name"] for t in description["topics"] if t["role"] == "alert"],
            description["dead_letters"],
            self._positions,
            self.activity,
            on_news,
        )
        self._threads = [
            threading.Thread(target=reader.run, name=f"console-{name}", daemon=True)
            for name, reader in (("log", self._positions), ("letters", self._letters), ("views", self._views))
            if reader is not None
        ]

    def start(self) -> None:
        """Start reading."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the readers; `stop` must be set."""
        self.activity.wake()
        # Closing the follower waits for its thread, which may be waiting for a log that is silent.
        closing = threading.Thread(target=self._follower.close, name="console-status", daemon=True)
        closing.start()
        deadline = time.monotonic() + _JOIN_S
        for thread in (*self._threads, closing):
            thread.join(max(0.0, deadline - time.monotonic()))

    def fresh_since(self, moment: float) -> bool:
        """Whether log and views have been read since a moment (epoch seconds), or do not answer."""
        return all(
            c.error is not None or (c.since is not None and c.since >= moment)
            for c in (self._positions.connection, self._views.connection if self._views else None)
            if c is not None
        )

    @property
    def reading(self) -> Reading:
        """What the log said last of its topics."""
        return self._positions.reading

    @property
    def captures(self) -> list[PartState]:
        """What the captures said last."""
        return part_states(self._follower.latest, "capture")

    def state(self) -> State:
        """Return the state as it is known now."""
        state = assemble(
            self.description,
            reading=self._positions.reading,
            facts=self._follower.latest,
            views=self._views.states if self._views else {},
            alerts=self._letters,
            kafka=self._positions,
            postgres=self._views.connection if self._views else None,
            at=time.time(),
        )
        return judged(state)


def assemble(
    description: Mapping[str, Any],
    *,
    reading: Reading,
    facts: Facts,
    views: Mapping[str, ViewState],
    alerts: Letters,
    kafka: Positions,
    postgres: Connection | None,
    at: float,
) -> State:
    """Return the page's state from the readers' values."""
    topics = topic_states(description, reading)
    groups = group_states(description, reading)
    dead = alerts.dead_letters()
    queries = query_states(description, facts, {g.query: g.lag for g in groups if g.query}, dead)
    return State(
        app=description["app"],
        at=at,
        kafka=kafka.connection,
        postgres=postgres,
        totals=totals(topics, groups, dead, _whole(facts.get(("late", "rows"), {}).get("dropped"))),
        topics=topics,
        groups=groups,
        queries=queries,
        captures=part_states(facts, "capture"),
        replays=part_states(facts, "replay"),
        deliveries=part_states(facts, "deliver"),
        # Steps that are done ("jars", "topics") stand behind what runs.
        processes=sorted(part_states(facts, "process"), key=lambda p: p.state == "done"),
        views=list(views.values()),
        alerts=alerts.alerts(),
        dead_letters=dead,
    )


def topic_states(description: Mapping[str, Any], reading: Reading) -> list[TopicState]:
    """Return the topics: the application's first, in the order of its declaration, then others; not Kafka's own (`__…`)."""
    roles: dict[str, Role] = {t["name"]: t["role"] for t in description["topics"] if t["role"] != "internal"}
    others = sorted(n for n in reading.topics if n not in roles and not n.startswith("__"))
    order = [n for n in roles if n in reading.topics]
    order += sorted(others, key=lambda n: n.startswith("_"))
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    for (name, partition), end in reading.ends.items():
        facts = reading.topics.get(name)
        ends[name] = ends.get(name, 0) + end
        starts[name] = starts.get(name, 0) + (facts.start.get(partition, 0) if facts else 0)
    return [
        TopicState(
            name=name,
            role=roles.get(name, "internal" if name.startswith("_") else "other"),
            partitions=reading.topics[name].partitions,
            events=ends.get(name, 0) - starts.get(name, 0),
            end=ends.get(name, 0),
            rate=reading.rates.get(name, 0.0),
            history=[round(v, 2) for v in reading.histories.get(name, ())],
            compacted="compact" in reading.topics[name].config.get("cleanup.policy", ""),
        )
        for name in order[:MAX_TOPICS]
    ]


def group_states(description: Mapping[str, Any], reading: Reading) -> list[GroupState]:
    """Return the consumer groups, the application's queries first, each with its lag by topic."""
    names = {q["group"]: q["name"] for q in description["queries"]}
    names[group(description["app"], DEAD_LETTERS)] = DEAD_LETTERS
    by_group: dict[str, dict[str, TopicLag]] = {}
    for lag in reading.lags:
        topics = by_group.setdefault(lag.group, {})
        found = topics.setdefault(lag.topic, TopicLag(lag.topic, 0, 0))
        found.lag += lag.lag
        found.partitions += 1
    states = []
    for name, topics in by_group.items():
        states.append(
            GroupState(
                name,
                names.get(name, ""),
                sum(t.lag for t in topics.values()),
                sorted(topics.values(), key=lambda t: t.topic),
            )
        )
    return sorted(states, key=lambda g: (not g.query, g.group))[:MAX_TOPICS]


def query_states(
    description: Mapping[str, Any], facts: Facts, lags: Mapping[str, int], dead: DeadLetters
) -> list[QueryState]:
    """Return the declared queries and the one that collects dead letters, with what they last reported."""
    declared = [
        QueryState(q["name"], q["kind"], list(q["inputs"]), q["to"], "realtime" if q["realtime"] else "micro-batch")
        for q in description["queries"]
    ]
    alerts = {t["name"] for t in description["topics"] if t["role"] == "alert"}
    for query, described in zip(declared, description["queries"], strict=True):
        query.alerts = not alerts.isdisjoint(described["topics"])
    if ("query", DEAD_LETTERS) in facts:
        inputs = [t["name"] for t in description["inputs"]]
        declared.append(QueryState(DEAD_LETTERS, "dead letters", inputs, dead.topic, "micro-batch"))
    for query in declared:
        said = facts.get(("query", query.name), {})
        query.state = str(said.get("state", "waiting"))
        query.mode = str(said.get("mode", query.mode))
        query.error = str(said["error"]) if said.get("error") else None
        query.watermark = str(said["watermark"]) if said.get("watermark") else None
        query.at = _number(said.get("at"))
        query.batch, query.batch_ms = _whole(said.get("batch")), _number(said.get("batch_ms"))
        query.input_rows, query.output_rows = _whole(said.get("input_rows")), _whole(said.get("output_rows"))
        query.rows_per_second = _number(said.get("rows_per_second"))
        query.dropped, query.dead = _whole(said.get("dropped")), _whole(said.get("dead"))
        query.state_rows = _whole(said.get("state_rows"))
        query.lag = lags.get(query.name)
    return declared


def part_states(facts: Facts, kind: str) -> list[PartState]:
    """Return the parts of a kind by name, as they last reported."""
    own = ("app", "kind", "name", "at", "state", "error")
    return [
        PartState(
            name,
            str(said.get("state", "unknown")),
            str(said["error"]) if said.get("error") else None,
            _number(said.get("at")),
            {k: v for k, v in said.items() if k not in own},
        )
        for (found, name), said in sorted(facts.items())
        if found == kind
    ]


def totals(
    topics: Iterable[TopicState], groups: Iterable[GroupState], dead: DeadLetters, dropped: int | None
) -> Totals:
    """Return the headline: what came in by the application's topics, how far behind its queries are, what needs a look.

    dropped: the events that some query left out as late, each once.
    """
    topics, lags = list(topics), [g.lag for g in groups if g.query]
    return Totals(
        events=sum(t.end for t in topics if t.role in ("input", "table")),
        rate=sum(t.rate for t in topics if t.role in ("input", "table")),
        lag=sum(lags) if lags else None,
        alerts=sum(t.end for t in topics if t.role == "alert"),
        dead=dead.distinct,
        dropped=dropped or 0,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and is_number(value) else None
