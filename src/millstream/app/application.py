"""What a user declares: topics, captured tables, and the functions that turn them into views, streams and alerts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from millstream.capture.table import PostgresTable, Table
from millstream.event import Event, Topic, duration, fields
from millstream.event.topic import check_name
from millstream.settings import MillstreamError
from millstream.spark.query import Kind, Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

F = TypeVar("F", bound="Callable[..., DataFrame]")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")  # fits a PostgreSQL schema, a topic's prefix and a folder alike
SHORTEST_COMMIT = timedelta(seconds=5)  # what Spark's real-time mode accepts
# Each commit of a real-time query holds its alerts up for 0.1 to 0.3 s; after a crash as much is looked at again.
REALTIME_COMMIT = timedelta(seconds=30)
DEAD_LETTERS = "dead_letters"


class App:
    """An application: a name, its topics and tables, and the queries over them.

    Declaring starts nothing and needs no Java: `millstream plan` shows what was declared, `millstream run` runs it. The
    decorators return the function unchanged, so that a test calls it on rows of its own.
    """

    def __init__(self, name: str) -> None:
        """name: lower-case letters, digits and underscores; it prefixes consumer groups, the views' schema and topics."""
        if not _NAME.fullmatch(name):
            raise MillstreamError(
                f"expected an application name of lower-case letters, digits and '_' (at most 48), got {name!r}."
            )
        self.name = name
        self.topics: dict[str, Topic] = {}
        self.tables: dict[str, Table] = {}
        self.queries: dict[str, Query] = {}

    @property
    def dead_letters(self) -> str:
        """The topic of events that could not be read."""
        return f"{self.name}.{DEAD_LETTERS}"

    def topic(
        self,
        name: str,
        event: type[Event],
        *,
        key: str | None = None,
        event_time: str | None = None,
        lateness: str | timedelta = "10 seconds",
        partitions: int = 2,
        config: Mapping[str, str] | None = None,
    ) -> Topic:
        """Declare a topic of typed events; it is created when the application runs and it is missing.

        key: the field whose value is the message's key: equal keys stay in order.
        event_time: the datetime field that says when the event happened; windows need it.
        lateness: how long after newer events one may still arrive and count.
        config: settings by Kafka's names, for example {"retention.ms": "86400000"}.
        """
        topic = Topic(name, event, key, event_time, duration(lateness), partitions, dict(config or {}))
        self._claim_topic(name, "topic")
        self.topics[name] = topic
        return topic

    def table(self, name: str, *, source: PostgresTable) -> Table:
        """Declare a table whose latest rows follow a database by change data capture; `name` is also its compacted topic."""
        if not isinstance(source, PostgresTable):
            raise MillstreamError(f'table {name!r}: source must be ms.postgres("database", table="…"), got {source!r}.')
        table = Table(name, source)
        self._claim_topic(name, "table")
        self.tables[name] = table
        return table

    def view(
        self,
        *inputs: Topic | Table,
        key: str | Sequence[str],
        name: str | None = None,
        every: str | timedelta = "1 second",
    ) -> Callable[[F], F]:
        """Keep the function's result as a table in PostgreSQL, "<app>"."<name>", one row per `key`, always up to date.

        key: the columns that identify a row; a window column stands for its start and end.
        every: how often changes are taken in.
        """
        columns = (key,) if isinstance(key, str) else tuple(key)
        if not columns:
            raise MillstreamError(
                'a view needs the columns that identify its rows: @app.view(topic, key=["origin", "hour"]).'
            )

        def declare(function: F) -> F:
            self._add("view", function, inputs, name or function.__name__, columns, duration(every), name=name)
            return function

        return declare

    def stream(
        self,
        *inputs: Topic | Table,
        to: str,
        key: str | None = None,
        name: str | None = None,
        every: str | timedelta = "1 second",
    ) -> Callable[[F], F]:
        """Write the function's rows to the topic `to`, as JSON, continuously.

        key: the column whose value becomes the message's key.
        every: how often a batch is taken in.
        """

        def declare(function: F) -> F:
            self._claim_output(to, function)
            self._add("stream", function, inputs, to, (key,) if key else (), duration(every), name=name)
            return function

        return declare

    def alert(
        self,
        *inputs: Topic | Table,
        to: str,
        key: str | None = None,
        name: str | None = None,
        latency: Literal["realtime", "micro-batch"] = "realtime",
        every: str | timedelta | None = None,
    ) -> Callable[[F], F]:
        """Write each row of the function to the topic `to`, once, as soon as possible.

        latency: "realtime" uses Spark's real-time mode (milliseconds), for functions that map and filter;
        "micro-batch" takes whatever Spark can stream.
        every: how often progress is committed and lag is told; in real-time mode 30 seconds, and at least 5.
        """
        if latency not in ("realtime", "micro-batch"):
            raise MillstreamError(f'latency must be "realtime" or "micro-batch", got {latency!r}.')
        realtime = latency == "realtime"
        interval = duration(every) if every is not None else REALTIME_COMMIT if realtime else timedelta(seconds=1)
        if realtime and interval < SHORTEST_COMMIT:
            raise MillstreamError(f"every must be at least 5 seconds in real-time mode, got {every!r}.")

        def declare(function: F) -> F:
            tables = [i.name for i in inputs if isinstance(i, Table)]
            if realtime and tables:
                raise MillstreamError(
                    f"alert {function.__name__!r}: real-time mode cannot follow the table {tables[0]!r} as it changes;"
                    ' join it in an @app.stream first, or say latency="micro-batch".'
                )
            self._claim_output(to, function)
            self._add("alert", function, inputs, to, (key,) if key else (), interval, realtime=realtime, name=name)
            return function

        return declare

    def describe(self) -> dict[str, Any]:
        """Return the application as plain JSON-able values: topics, tables, queries."""
        return {
            "app": self.name,
            "dead_letters": self.dead_letters,
            "topics": [
                {
                    "name": t.name,
                    "key": t.key,
                    "event_time": t.event_time,
                    "lateness_s": t.lateness.total_seconds(),
                    "partitions": t.partitions,
                    "config": dict(t.config),
                    "fields": [{"name": f.name, "kind": f.kind, "nullable": f.nullable} for f in fields(t.event)],
                }
                for t in self.topics.values()
            ],
            "tables": [
                {"name": t.name, "database": t.source.database, "schema": t.source.schema, "table": t.source.table}
                for t in self.tables.values()
            ],
            "queries": [
                {
                    "name": q.name,
                    "kind": q.kind,
                    "inputs": [i.name for i in q.inputs],
                    "to": q.to,
                    "key": list(q.key),
                    "realtime": q.realtime,
                    "every_s": q.every.total_seconds(),
                }
                for q in self.queries.values()
            ],
        }

    def _add(
        self,
        kind: Kind,
        function: Callable[..., DataFrame],
        inputs: tuple[Topic | Table, ...],
        to: str,
        key: tuple[str, ...],
        every: timedelta,
        *,
        realtime: bool = False,
        name: str | None = None,
    ) -> None:
        name = name or function.__name__
        where = f"{kind} {name!r}"
        if not _NAME.fullmatch(name):
            raise MillstreamError(f"{where}: expected a name of lower-case letters, digits and '_' (at most 48).")
        if name in self.queries or name == DEAD_LETTERS:
            raise MillstreamError(f"{where}: the name is taken; give another function name or name=….")
        for given in inputs:
            if not isinstance(given, Topic | Table):
                raise MillstreamError(
                    f"{where}: inputs are what app.topic(…) and app.table(…) returned, got {given!r}."
                )
            known: Mapping[str, Topic | Table] = self.topics if isinstance(given, Topic) else self.tables
            if known.get(given.name) is not given:
                raise MillstreamError(
                    f"{where}: {given.name!r} was declared by another application than {self.name!r}."
                )
        if not inputs or not isinstance(inputs[0], Topic):
            raise MillstreamError(f"{where}: the first input must be a topic; tables come after it.")
        if sum(isinstance(i, Topic) for i in inputs) > 1:
            raise MillstreamError(f"{where}: one topic per query for now; joins of two topics are not there yet.")
        if kind == "view" and len(inputs) > 1:
            raise MillstreamError(f"{where}: a view reads one topic for now; join tables in an @app.stream first.")
        parameters = inspect.signature(function).parameters
        if len(parameters) != len(inputs):
            raise MillstreamError(
                f"{where}: it names {len(inputs)} inputs but the function takes {len(parameters)} parameters"
                f" ({', '.join(parameters) or 'none'}); they must match, in their order."
            )
        self.queries[name] = Query(name, kind, inputs, function, to, key, realtime, every)

    def _claim_topic(self, name: str, role: str) -> None:
        if name.startswith("_") or name == self.dead_letters:
            raise MillstreamError(f"{role} {name!r}: this name is kept for Millstream's own topics.")
        if (
            name in self.topics
            or name in self.tables
            or any(q.to == name for q in self.queries.values() if q.kind != "view")
        ):
            raise MillstreamError(f"{role} {name!r}: the application already has a topic of that name.")

    def _claim_output(self, to: str, function: Callable[..., DataFrame]) -> None:
        check_name(to)
        self._claim_topic(to, f"output of {function.__name__!r}, topic")
