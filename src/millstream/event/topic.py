"""A topic as an application declares it: its name, the type of its events, their key, their time and how late they may come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from millstream.event.event import Event
from millstream.event.fields import fields
from millstream.settings import MillstreamError

# Kafka's rule for topic names (org.apache.kafka.common.internals.Topic).
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
MAX_PARTITIONS = 10_000  # a typing mistake ("partitions=100000") must not fill a disk with empty partitions


@dataclass(frozen=True)
class Topic:
    """A topic of typed events.

    key: the field whose value is the message's key, or None for none; equal keys go to one partition, in order.
    event_time: the field that says when the event happened, or None for a topic without windows.
    lateness: how much older than the newest event one may be and still count: the watermark's delay.
    config: Kafka's topic settings, for example {"cleanup.policy": "compact"}.
    """

    name: str
    event: type[Event]
    key: str | None = None
    event_time: str | None = None
    lateness: timedelta = timedelta(0)
    partitions: int = 2
    config: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        columns = {f.name: f for f in fields(self.event)}
        for role, name in (("key", self.key), ("event_time", self.event_time)):
            if name is not None and name not in columns:
                raise MillstreamError(
                    f"topic {self.name!r}: {role} names the field {name!r}, which {self.event.__name__} lacks;"
                    f" it has {', '.join(columns)}."
                )
        if self.event_time and columns[self.event_time].kind != "timestamp":
            raise MillstreamError(f"topic {self.name!r}: event_time {self.event_time!r} must be a datetime.")
        if self.event_time and columns[self.event_time].nullable:
            raise MillstreamError(
                f"topic {self.name!r}: event_time {self.event_time!r} must not be optional: every event has a time."
            )
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise MillstreamError(
                f"topic {self.name!r}: partitions must be 1 to {MAX_PARTITIONS}, got {self.partitions}."
            )


def check_name(name: str) -> str:
    """Return `name` if it is a legal topic name; raises MillstreamError otherwise."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise MillstreamError(
            f"expected a topic name of letters, digits, '.', '_' and '-' (at most 249), got {name!r}."
        )
    return name
