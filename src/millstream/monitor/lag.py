"""Lag: how far each consumer group is behind the end of its topics, over the Admin API alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.client.admin import LATEST, Offsets, offsets, topic_names
from millstream.client.groups import committed_by, groups
from millstream.settings import Kafka


@dataclass(frozen=True)
class Lag:
    """A group's position in one partition. `committed` is the next offset it reads, `end` the next to be written.

    lag: events between them; 0 when the group is ahead (its topic was made again).
    """

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int


def all_lags(kafka: Kafka) -> list[Lag]:
    """Return the lag of every group in every partition it has a committed offset for, sorted. Raises MillstreamError."""
    return lags(kafka, [g.name for g in groups(kafka)])


def group_lag(kafka: Kafka, group: str) -> list[Lag]:
    """Return the lag of one group by partition; empty when it never committed an offset. Raises MillstreamError."""
    return lags(kafka, [group])


def lags(kafka: Kafka, names: Iterable[str]) -> list[Lag]:
    """Return the lag of the groups in every partition that they have a committed offset for, sorted. Raises MillstreamError."""
    positions = committed_by(kafka, names)
    wanted = {tp for position in positions.values() for tp in position}
    if not wanted:
        return []
    existing = set(topic_names(kafka))  # offsets outlive the topics they were committed for
    ends: Offsets = offsets(kafka, sorted(tp for tp in wanted if tp[0] in existing), LATEST)
    return [
        Lag(group, topic, partition, tp.offset, ends[topic, partition], max(0, ends[topic, partition] - tp.offset))
        for group, position in sorted(positions.items())
        for (topic, partition), tp in sorted(position.items())
        if (topic, partition) in ends
    ]
