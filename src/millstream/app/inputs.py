"""Inputs: what a query's function takes. A new kind of input is a class here and a module of `spark.inputs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from typing import ClassVar, Protocol

from millstream.app.names import check_topic
from millstream.app.sources import Source
from millstream.app.topics import COMPACTED, DEFAULT_PARTITIONS, NeededTopic, check_config
from millstream.event import Event, fields
from millstream.event.format import JSON, Format
from millstream.settings import MillstreamError, Settings

OUTSIDE = "millstream.run.outside"  # the module that reaches a running application
FUTURE = timedelta(minutes=5)  # clocks differ; a time further ahead would move the watermark past everything after it
IDLE = timedelta(minutes=1)  # a pause of a producer, a restart: shorter ones must not cost a partition its rows
MAX_PARTITIONS = 10_000  # a typing mistake ("partitions=100000") must not fill a disk with empty partitions


class Input(Protocol):
    """What a function's parameter stands for.

    kind: what people call it.
    spark: the module that opens it on Spark: `open(context, query, input)` returns a DataFrame.
    streams: it brings events, which a query takes in one after the other; otherwise it is a state that changes beside them.
    """

    kind: ClassVar[str]
    spark: ClassVar[str]
    streams: ClassVar[bool]

    @property
    def name(self) -> str:
        """The name of the input, unique in its application."""

    @property
    def topic(self) -> NeededTopic:
        """The topic that it is read from."""


@dataclass(frozen=True)
class Topic:
    """A topic of typed events.

    key: the field whose value is the message's key, or None for none; equal keys go to one partition, in order.
    event_time: the field that says when the event happened, or None for a topic without windows.
    lateness: how much older than the newest event of its partition one may be and still count.
    future: how far an event's time may lie ahead of the log's own; one beyond is a dead letter. None: as far as it likes.
    idle: how long a partition without events holds windows open; then the others alone say how late it is. None: for ever.
    config: Kafka's topic settings, for example {"cleanup.policy": "compact"}.
    format: how an event becomes bytes and back.
    """

    kind: ClassVar[str] = "topic"
    spark: ClassVar[str] = "millstream.spark.inputs.topic"
    streams: ClassVar[bool] = True

    name: str
    event: type[Event]
    key: str | None = None
    event_time: str | None = None
    lateness: timedelta = timedelta(0)
    partitions: int = DEFAULT_PARTITIONS
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    format: Format = JSON
    future: timedelta | None = FUTURE
    idle: timedelta | None = IDLE

    def __post_init__(self) -> None:
        check_topic(self.name)
        where = f"topic {self.name!r}"
        if not (isinstance(self.event, type) and issubclass(self.event, Event)):
            raise MillstreamError(f"{where}: expected a subclass of ms.Event, got {self.event!r}.")
        columns = {f.name: f for f in fields(self.event)}
        for role, name in (("key", self.key), ("event_time", self.event_time)):
            if name is not None and (not isinstance(name, str) or name not in columns):
                raise MillstreamError(
                    f"{where}: {role} names the field {name!r}, which {self.event.__name__} lacks;"
                    f" it has {', '.join(columns)}."
                )
        if self.event_time and columns[self.event_time].kind != "timestamp":
            raise MillstreamError(f"{where}: event_time {self.event_time!r} must be a datetime.")
        if self.event_time and columns[self.event_time].nullable:
            raise MillstreamError(
                f"{where}: event_time {self.event_time!r} must not be optional: every event has a time."
            )
        if type(self.partitions) is not int or not 1 <= self.partitions <= MAX_PARTITIONS:
            raise MillstreamError(f"{where}: partitions must be 1 to {MAX_PARTITIONS}, got {self.partitions!r}.")
        check_config(where, self.config)
        if not all(hasattr(self.format, part) for part in ("name", "spark", "encode", "decode")):
            raise MillstreamError(f"{where}: format must be an object such as event.format.JSON, got {self.format!r}.")

    @property
    def topic(self) -> NeededTopic:
        """See Input."""
        return NeededTopic(self.name, self.partitions, self.config, "input")

    def send(self, event: Event, *, key: str | bytes | None = None, settings: Settings | None = None) -> None:
        """Send an event, and return once the log has acknowledged it. See `send_many`, which is what many events want."""
        self.send_many((event,), key=key, settings=settings)

    def send_many(
        self, events: Iterable[Event], *, key: str | bytes | None = None, settings: Settings | None = None
    ) -> int:
        """Send events in their order, and return how many, once the log has acknowledged every one (acks=all, idempotent).

            orders.send_many(Order(product=name, price=1.5, at=datetime.now(UTC)) for name in names)

        The log is the one that the settings name, or that of the application that runs in the data folder; while that is
        starting it is waited for. The topic is made if it is missing. May be called from any thread; an iterable of any length
        is taken in as it is sent.
        key: the messages' key, instead of the field that the topic's `key` names.
        settings: addresses, instead of those of `millstream.toml` and the environment.

        Raises MillstreamError when there is no log; its subclass client.sender.SendError, with `written`, `taken` and `failed`,
        when an event was not written: another class than the topic's, too large, or not acknowledged within 30 seconds.
        """
        sent: int = import_module(OUTSIDE).send(self, events, key, settings)
        return sent


@dataclass(frozen=True)
class Table:
    """The latest row of every primary key, fed by change data capture into the compacted topic `name`."""

    kind: ClassVar[str] = "table"
    spark: ClassVar[str] = "millstream.spark.inputs.table"
    streams: ClassVar[bool] = False

    name: str
    source: Source

    def __post_init__(self) -> None:
        check_topic(self.name)

    @property
    def topic(self) -> NeededTopic:
        """See Input."""
        return NeededTopic(self.name, DEFAULT_PARTITIONS, COMPACTED, "table")
