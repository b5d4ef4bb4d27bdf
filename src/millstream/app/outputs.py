"""Outputs: where a query's rows go. A new kind of output is a class here and a module of `spark.outputs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from millstream.app.names import candidates, check_topic, delivery_group
from millstream.app.process import TOPICS, Process
from millstream.app.query import Delivery, Query, StoredTable
from millstream.app.topics import NeededTopic
from millstream.settings import MillstreamError

POSTGRESQL = "millstream.stores.postgresql"
SHORTEST_COMMIT = timedelta(seconds=5)  # what Spark's real-time mode accepts


class Base:
    """An output that needs nothing beside what Spark writes; what a kind of output needs, it overrides."""

    def check(self, query: Query) -> None:
        """See Output."""

    def topics(self, app: str, query: Query) -> Sequence[NeededTopic]:
        """See Output."""
        return ()

    def tables(self, app: str, query: Query) -> Sequence[StoredTable]:
        """See Output."""
        return ()

    def deliveries(self, app: str, query: Query) -> Sequence[Delivery]:
        """See Output."""
        return ()


@dataclass(frozen=True)
class View(Base):
    """A table in PostgreSQL, one row per key, always up to date."""

    kind: ClassVar[str] = "view"
    spark: ClassVar[str] = "millstream.spark.outputs.view"

    to: str
    key: tuple[str, ...]

    def tables(self, app: str, query: Query) -> Sequence[StoredTable]:
        """See Output."""
        return (StoredTable(POSTGRESQL, app, self.to, query.name),)


@dataclass(frozen=True)
class Stream(Base):
    """Each row a message of a topic."""

    kind: ClassVar[str] = "stream"
    spark: ClassVar[str] = "millstream.spark.outputs.stream"

    to: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_topic(self.to)

    def check(self, query: Query) -> None:
        """See Output."""
        _check_events(query)

    def topics(self, app: str, query: Query) -> Sequence[NeededTopic]:
        """See Output."""
        return (NeededTopic(self.to, query.partitions, {}, "output"),)


@dataclass(frozen=True)
class TopicSink:
    """A topic to which rows are delivered."""

    kind: ClassVar[str] = "topic"
    deliver: ClassVar[str] = "millstream.deliver.sinks.topic"

    name: str

    def describe(self) -> str:
        """See Sink."""
        return f"topic {self.name}"


@dataclass(frozen=True)
class Alert(Base):
    """Each row once, as soon as possible, to a topic."""

    kind: ClassVar[str] = "alert"
    spark: ClassVar[str] = "millstream.spark.outputs.alert"

    to: str
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_topic(self.to)

    def check(self, query: Query) -> None:
        """See Output."""
        _check_events(query)
        if query.realtime and query.states:
            raise MillstreamError(
                f"{query}: real-time mode cannot follow the table {query.states[0].name!r} as it changes;"
                ' say latency="micro-batch", or join it in an @app.stream first.'
            )
        if query.realtime and query.every < SHORTEST_COMMIT:
            raise MillstreamError(
                f"{query}: every must be at least {SHORTEST_COMMIT.seconds} seconds in real-time mode, got {query.every}."
            )

    def topics(self, app: str, query: Query) -> Sequence[NeededTopic]:
        """See Output."""
        return (
            NeededTopic(self.to, query.partitions, {}, "alert"),
            NeededTopic(candidates(app, query.name), query.partitions, {}, "internal"),
        )

    def deliveries(self, app: str, query: Query) -> Sequence[Delivery]:
        """See Output."""
        return (Delivery(query.name, candidates(app, query.name), delivery_group(app, query.name), TopicSink(self.to)),)


def _check_events(query: Query) -> None:
    """Raise MillstreamError for a query that no event reaches."""
    if not query.streams:
        raise MillstreamError(
            f"{query}: its inputs are tables alone, which change but bring no events. Keep the result as a view"
            " (@app.view(…, key=…)), or name a topic of events as well."
        )


DELIVER = Process("deliver", module="millstream.deliver.process", needs=frozenset({TOPICS}), gets=frozenset({"kafka"}))
