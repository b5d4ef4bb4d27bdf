"""What a user declares: topics, captured tables, and the functions that turn them into views, streams and alerts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from millstream.app.inputs import FUTURE, IDLE, OUTSIDE, Input, Table, Topic
from millstream.app.names import DEAD_LETTERS, check_name, check_topic, dead_letters
from millstream.app.outputs import Alert, Stream, View
from millstream.app.query import Output, Query
from millstream.app.sources import Source
from millstream.app.topics import DEFAULT_PARTITIONS, check_config
from millstream.event import Event, duration
from millstream.event.format import JSON, Format
from millstream.settings import MillstreamError, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.stores.store import Rows

F = TypeVar("F", bound="Callable[..., DataFrame]")

MICRO_BATCH = timedelta(seconds=1)
# Each commit of a real-time query holds its alerts up for 0.1 to 0.3 s; after a crash as much is looked at again.
REALTIME_COMMIT = timedelta(seconds=30)
SHORTEST = timedelta(milliseconds=1)


class App:
    """An application: a name, its topics and tables, and the queries over them.

    Declaring starts nothing and needs no Java: `millstream plan` shows what was declared, `millstream run` runs it. The
    decorators return the function unchanged, so that a test calls it on rows of its own.
    """

    def __init__(self, name: str) -> None:
        """name: lower-case letters, digits and underscores; it prefixes consumer groups, the views' schema and topics."""
        self.name = check_name("an application name", name)
        self.topics: dict[str, Topic] = {}
        self.tables: dict[str, Table] = {}
        self.queries: dict[str, Query] = {}

    @property
    def dead_letters(self) -> str:
        """The topic of events that could not be read."""
        return dead_letters(self.name)

    def topic(
        self,
        name: str,
        event: type[Event],
        *,
        key: str | None = None,
        event_time: str | None = None,
        lateness: str | timedelta = "10 seconds",
        future: str | timedelta | None = FUTURE,
        idle: str | timedelta | None = IDLE,
        partitions: int = DEFAULT_PARTITIONS,
        config: Mapping[str, str] | None = None,
        format: Format = JSON,
    ) -> Topic:
        """Declare a topic of typed events; it is created when the application runs and it is missing.

        key: the field whose value is the message's key: equal keys stay in order.
        event_time: the datetime field that says when the event happened; windows need it.
        lateness: how much older than the newest event of its partition one may be and still count.
        future: how far an event's time may be ahead of the log's; one beyond is a dead letter. None: no bound.
        idle: how long a partition or topic without events holds windows open; after that it holds nothing, and what it brings
            then may be late. None: it holds them until it brings events.
        config: settings by Kafka's names, for example {"retention.ms": "86400000"}.
        """
        where = f"topic {check_topic(name)!r}"
        ahead = None if future is None else duration(future, f"{where}: future")
        quiet = None if idle is None else duration(idle, f"{where}: idle")
        settings = {} if config is None else check_config(where, config)
        late = duration(lateness, f"{where}: lateness")
        topic = Topic(name, event, key, event_time, late, partitions, settings, format, ahead, quiet)
        self._claim(name, "topic")
        self.topics[name] = topic
        return topic

    def table(self, name: str, *, source: Source) -> Table:
        """Declare a table whose latest rows follow a database by change data capture; `name` is also its compacted topic."""
        if not all(hasattr(source, part) for part in ("database", "process", "describe", "embedded_database")):
            raise MillstreamError(f'table {name!r}: source must be ms.postgres("database", table="…"), got {source!r}.')
        table = Table(name, source)
        self._claim(name, "table")
        self.tables[name] = table
        return table

    def view(
        self,
        *inputs: Input,
        key: str | Sequence[str],
        name: str | None = None,
        every: str | timedelta = MICRO_BATCH,
    ) -> Callable[[F], F]:
        """Keep the function's result as a table in PostgreSQL, "<app>"."<name>", one row per `key`, always up to date.

            @app.view(departures, key=["origin", "hour"])
            def delay_by_hour(departures): …

        key: the columns that identify a row; a window column stands for its start and end.
        every: how often changes are taken in.
        """
        columns = _columns(key)
        if not columns:
            raise MillstreamError(
                'a view needs the columns that identify its rows: @app.view(topic, key=["origin", "hour"]).'
            )
        return self.query(*inputs, output=lambda named: View(named, columns), name=name, every=every)

    def stream(
        self,
        *inputs: Input,
        to: str | Topic,
        key: str | None = None,
        name: str | None = None,
        every: str | timedelta = MICRO_BATCH,
    ) -> Callable[[F], F]:
        """Write the function's rows to the topic `to`, as JSON, continuously.

        A function that groups by windows over event time writes each window once, when it has closed; one that groups otherwise
        writes a row each time it changes.

            @app.stream(departures, planes, to="departures_enriched", key="tailnum")
            def enriched(departures, planes): …

        to: a name, or a topic of the application, which other queries then read.
        key: the column whose value becomes the message's key.
        every: how often a batch is taken in.
        """
        output = Stream(self._output(to), _columns(key))
        return self.query(*inputs, output=output, name=name, every=every)

    def alert(
        self,
        *inputs: Input,
        to: str | Topic,
        key: str | None = None,
        name: str | None = None,
        latency: Literal["realtime", "micro-batch"] = "realtime",
        every: str | timedelta | None = None,
    ) -> Callable[[F], F]:
        """Write each row of the function to the topic `to`, once, as soon as possible.

            @app.alert(departures, to="late_departures", latency="realtime")
            def very_late(departures): …

        latency: "realtime" uses Spark's real-time mode (milliseconds), for functions that map and filter;
        "micro-batch" takes whatever Spark can stream.
        every: how often progress is committed and lag is reported; in real-time mode 30 seconds, and at least 5.
        """
        if latency not in ("realtime", "micro-batch"):
            raise MillstreamError(f'latency must be "realtime" or "micro-batch", got {latency!r}.')
        realtime = latency == "realtime"
        pace = every if every is not None else REALTIME_COMMIT if realtime else MICRO_BATCH
        output = Alert(self._output(to), _columns(key))
        return self.query(*inputs, output=output, name=name, every=pace, realtime=realtime)

    def read(
        self,
        view: str,
        *,
        where: Mapping[str, object] | None = None,
        limit: int | None = None,
        settings: Settings | None = None,
    ) -> Rows:
        """Return the rows of a view as they are now, the newest windows first: iterate, or `.rows()`, `.arrow()`, `.pandas()`.

            app.read("delay_by_hour", where={"origin": "JFK"}, limit=24).pandas()

        The store is the one that the settings name, or that of the application that runs in the data folder.
        where: the values that columns must have; None for no value.
        limit: at most so many rows; without it all of them are read into memory.
        settings: addresses, instead of those of `millstream.toml` and the environment.

        Raises MillstreamError when there is no such view, nothing has been written to it yet, or no store answers.
        """
        tables = {t.name: t for q in self.queries.values() for t in q.output.tables(self.name, q)}
        if view not in tables:
            raise MillstreamError(f"{self.name!r} has no view {view!r}; it has {', '.join(tables) or 'none'}.")
        if limit is not None and (type(limit) is not int or limit < 0):
            raise MillstreamError(f"limit must be a number of rows, got {limit!r}.")
        found: Rows = import_module(OUTSIDE).read(tables[view], settings, limit=limit, where=where)
        return found

    def query(
        self,
        *inputs: Input,
        output: Output | Callable[[str], Output],
        name: str | None = None,
        every: str | timedelta = MICRO_BATCH,
        realtime: bool = False,
    ) -> Callable[[F], F]:
        """Run a function over the inputs and give its rows to an output of any kind: what `view`, `stream` and `alert` stand on.

        output: the output, or what makes it from the query's name.
        """
        interval = duration(every, "every")
        if interval < SHORTEST:
            raise MillstreamError(f"every must be a millisecond at least, got {every!r}.")

        def declare(function: F) -> F:
            named = str(getattr(function, "__name__", "")) if name is None else name
            made = cast("Output", output if hasattr(output, "kind") else cast("Any", output)(named))
            query = Query(named, inputs, function, made, realtime, interval)
            self._check(query)
            self.queries[query.name] = query
            return function

        return declare

    def _check(self, query: Query) -> None:
        where = str(query)
        check_name(f"a name of the {query.output.kind}", query.name)
        if query.name in self.queries or query.name == DEAD_LETTERS:
            raise MillstreamError(f"{where}: the name is taken; give another function name or name=….")
        for given in query.inputs:
            if not all(hasattr(given, part) for part in ("name", "topic", "spark", "streams")):
                raise MillstreamError(
                    f"{where}: inputs are what app.topic(…) and app.table(…) returned, got {given!r}."
                )
            if (self.topics.get(given.name) or self.tables.get(given.name)) is not given:
                raise MillstreamError(
                    f"{where}: {given.name!r} was declared by another application than {self.name!r}."
                )
            if query.inputs.count(given) > 1:
                raise MillstreamError(f"{where}: {given.name!r} is named twice; use the one frame twice instead.")
        if not query.inputs:
            raise MillstreamError(
                f"{where}: name the topics and tables that it reads: @app.{query.output.kind}(topic, …)."
            )
        parameters = _parameters(where, query.function)
        if len(parameters) != len(query.inputs):
            raise MillstreamError(
                f"{where}: it names {len(query.inputs)} inputs but the function takes {len(parameters)} parameters"
                f" ({', '.join(parameters) or 'none'}); they must match, in their order."
            )
        query.output.check(query)
        for written in query.output.topics(self.name, query):
            if written.role != "internal":
                self._claim(written.name, f"output of {query.name!r}, topic", of=query)

    def _output(self, to: str | Topic) -> str:
        if isinstance(to, Topic):
            if self.topics.get(to.name) is not to:
                raise MillstreamError(f"topic {to.name!r} was declared by another application than {self.name!r}.")
            return to.name
        return to

    def _claim(self, name: str, role: str, of: Query | None = None) -> None:
        """Raise MillstreamError when a topic's name is kept or taken. A declared topic may be written by one query."""
        if name.startswith("_") or name == self.dead_letters:
            raise MillstreamError(f"{role} {name!r}: this name is kept for Millstream's own topics.")
        written = {t.name for q in self.queries.values() for t in q.output.topics(self.name, q)}
        declared = name in self.tables or (name in self.topics and of is None)
        if declared or name in written:
            raise MillstreamError(f"{role} {name!r}: the application already has a topic of that name.")
        if of is not None and any(i.name == name for i in of.inputs):
            raise MillstreamError(
                f"{role} {name!r}: the query reads this topic; its rows would come back to it for ever."
            )


def _parameters(where: str, function: object) -> list[str]:
    """Return the names of a function's parameters. Raises MillstreamError for what takes no frames in their order."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise MillstreamError(f"{where}: expected a function of its inputs, got {function!r}.") from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise MillstreamError(
                f"{where}: expected a function with a positional parameter for each input, got {parameter} as one."
            )
    return [parameter.name for parameter in parameters]


def _columns(key: str | Sequence[str] | None) -> tuple[str, ...]:
    if key is not None and not isinstance(key, str | list | tuple):
        raise MillstreamError(f"key names columns of the function's result, got {key!r}.")
    columns = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    for column in columns:
        if not isinstance(column, str) or not column:
            raise MillstreamError(f"key names columns of the function's result, got {column!r}.")
    return columns
