"""A query as an application declares it: its inputs, a function from DataFrames to a DataFrame, and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol

from millstream.app.inputs import Input
from millstream.app.topics import NeededTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Query:
    """What runs on Spark.

    inputs: what the function's parameters are, in their order.
    output: where the rows go.
    realtime: run in Spark's real-time mode (milliseconds) rather than in micro-batches.
    every: how often a micro-batch starts; in real-time mode how often progress is committed (5 seconds at least).
    """

    name: str
    inputs: tuple[Input, ...]
    function: Callable[..., DataFrame] = field(repr=False)
    output: Output
    realtime: bool = False
    every: timedelta = timedelta(seconds=1)

    def __str__(self) -> str:
        return f"{self.output.kind} {self.name!r}"

    @property
    def streams(self) -> tuple[Input, ...]:
        """The inputs that bring events."""
        return tuple(i for i in self.inputs if i.streams)

    @property
    def states(self) -> tuple[Input, ...]:
        """The inputs that are a state beside the events: tables."""
        return tuple(i for i in self.inputs if not i.streams)

    @property
    def partitions(self) -> int:
        """How many partitions a topic of its rows has: as many as what they are made from, so that they stay as parallel."""
        return max(i.topic.partitions for i in self.streams or self.inputs)


@dataclass(frozen=True)
class StoredTable:
    """A table that a query keeps. store: the module of the store it is in.   app, name: what it is called there."""

    store: str
    app: str
    name: str
    query: str = ""


@dataclass(frozen=True)
class Delivery:
    """Rows that leave event by event. candidates: the internal topic in which Spark leaves them.   group: whose position counts.
    sink: where they go.
    """

    query: str
    candidates: str
    group: str
    sink: Sink


class Sink(Protocol):
    """A person or system that rows reach one by one. deliver: the module of `deliver` that reaches it."""

    kind: ClassVar[str]
    deliver: ClassVar[str]

    def describe(self) -> str:
        """Return where it is, in words."""


class Output(Protocol):
    """Where a query's rows go.

    kind: what people call it: it is shown, and nothing is decided by it.
    spark: the module that carries it out: `start(context, query, result)` returns the running streaming query.
    key: the columns that identify a row, or that become the message's key.
    to: the name of what is written, for people.
    """

    kind: ClassVar[str]
    spark: ClassVar[str]

    @property
    def to(self) -> str: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    def check(self, query: Query) -> None:
        """Raise MillstreamError when the query cannot have this output, saying what to do instead."""

    def topics(self, app: str, query: Query) -> Sequence[NeededTopic]:
        """Return the topics that it writes, the internal ones too."""

    def tables(self, app: str, query: Query) -> Sequence[StoredTable]:
        """Return the tables that it keeps in stores."""

    def deliveries(self, app: str, query: Query) -> Sequence[Delivery]:
        """Return what `deliver` passes on of it."""
