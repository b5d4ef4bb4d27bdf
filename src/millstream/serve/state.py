"""What the console shows, as plain values: one State holds the whole page, and `/api/state` is its JSON."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Role = Literal["input", "table", "output", "alert", "dead letters", "internal", "other"]


class Connection(Struct):
    """Whether a server answers. error: why not, in words; since: epoch seconds of the last answer, None before the first."""

    name: str
    up: bool
    error: str | None = None
    since: float | None = None


class TopicState(Struct):
    """A topic. events: offsets between start and end; rate: events/s over the last seconds; history: events/s, oldest first."""

    name: str
    role: Role
    partitions: int
    events: int
    end: int
    rate: float
    history: list[float]
    compacted: bool = False
    bytes: int | None = None


class TopicLag(Struct):
    """How far a group is behind in one topic, in events."""

    topic: str
    lag: int
    partitions: int


class GroupState(Struct):
    """A consumer group. query: the application's query that it belongs to, "" for other consumers."""

    group: str
    query: str
    lag: int
    topics: list[TopicLag]


class QueryState(Struct):
    """A query on Spark: what was declared, and what it last reported. Numbers are None until it reports them."""

    name: str
    kind: str
    inputs: list[str]
    to: str
    mode: str
    state: str = "waiting"
    error: str | None = None
    batch: int | None = None
    batch_ms: float | None = None
    input_rows: int | None = None
    output_rows: int | None = None
    rows_per_second: float | None = None
    watermark: str | None = None
    dropped: int | None = None
    dead: int | None = None
    state_rows: int | None = None
    lag: int | None = None
    at: float | None = None
    alerts: bool = False  # whether it writes a topic of alerts
    stale: bool = False  # whether `state` is what is known of its process, and the rest what it said before


class PartState(Struct):
    """A capture, replay, delivery or process: its state and the facts that it reported, by name. at, stale: as of queries."""

    name: str
    state: str
    error: str | None
    at: float | None
    facts: dict[str, Any]
    stale: bool = False


class Column(Struct):
    """A column of a view. kind: integer, number, time, date, boolean or text."""

    name: str
    kind: str
    key: bool = False


class Series(Struct):
    """One line of a chart: a label and, per numeric column of the chart, the values at the chart's times (None: no row)."""

    label: str
    values: list[list[float | None]]


class Chart(Struct):
    """A view over time. times: epoch seconds; step: the window's length in seconds; left_out: number of series not shown."""

    time: str
    by: list[str]
    columns: list[str]
    chosen: int
    times: list[float]
    series: list[Series]
    step: float | None = None
    left_out: int = 0


class ViewState(Struct):
    """A view's newest rows. total: number of rows, at most MAX_COUNTED; batch, at: the write that they come from."""

    name: str
    key: list[str]
    columns: list[Column] = []
    rows: list[list[Any]] = []
    total: int = 0
    more: bool = False
    batch: int | None = None
    at: float | None = None
    chart: Chart | None = None
    error: str | None = None


class Letter(Struct):
    """A message of an alert or dead-letter topic. origin: topic-partition-offset of its cause; at: epoch seconds."""

    topic: str
    partition: int
    offset: int
    at: float | None
    key: str | None
    value: dict[str, Any] | str | None
    origin: str | None = None
    reason: str | None = None


class DeadLetters(Struct):
    """The dead letters: how many distinct events, whether that is only a lower bound, their reasons by count, the newest."""

    topic: str
    distinct: int
    at_least: bool
    newest: list[Letter]


class Totals(Struct):
    """The page's headline."""

    events: int
    rate: float
    lag: int | None
    alerts: int
    dead: int
    dropped: int


class State(Struct):
    """Everything that the page shows. at: epoch seconds; postgres: None for an application without views."""

    app: str
    at: float
    kafka: Connection
    postgres: Connection | None
    totals: Totals
    topics: list[TopicState]
    groups: list[GroupState]
    queries: list[QueryState]
    captures: list[PartState]
    replays: list[PartState]
    deliveries: list[PartState]
    processes: list[PartState]
    views: list[ViewState]
    alerts: list[Letter]
    dead_letters: DeadLetters
