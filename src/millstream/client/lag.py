"""Lag: how far each consumer group is behind the end of its topics, over the Admin API alone, and setting a group's position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from millstream.client.admin import LATEST, Offsets, offsets, topic_names
from millstream.client.connect import TIMEOUT_S, admin, code, explain, result
from millstream.settings import Kafka, MillstreamError


@dataclass(frozen=True)
class Lag:
    """A group's position in one partition. `committed` is the next offset it reads, `end` the next to be written.

    lag: events between them; 0 when the group is ahead (its topic was made anew).
    """

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int


@dataclass(frozen=True)
class Group:
    """A consumer group: its name, its state ("stable", "empty", …) and its protocol ("classic", "consumer")."""

    name: str
    state: str
    type: str


def groups(kafka: Kafka) -> list[Group]:
    """Return every consumer group that the log knows, sorted by name: also those that only ever committed offsets."""
    listing = result(
        admin(kafka).list_consumer_groups(request_timeout=TIMEOUT_S), kafka, "consumer groups cannot be listed"
    )
    for error in listing.errors or ():
        raise explain(error.args[0], kafka, "consumer groups cannot be listed")
    return sorted(
        (Group(g.group_id, g.state.name.lower(), g.type.name.lower()) for g in listing.valid or ()),
        key=lambda g: g.name,
    )


def all_lags(kafka: Kafka) -> list[Lag]:
    """Return the lag of every group in every partition it has a committed offset for, sorted. Raises MillstreamError."""
    return _lags(kafka, [g.name for g in groups(kafka)])


def group_lag(kafka: Kafka, group: str) -> list[Lag]:
    """Return the lag of one group by partition; empty when it never committed an offset. Raises MillstreamError."""
    return _lags(kafka, [group])


def committed(kafka: Kafka, group: str) -> dict[tuple[str, int], TopicPartition]:
    """Return what a group has committed, by (topic, partition), with the commit's metadata. Empty for an unknown group."""
    future = admin(kafka).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_S)[
        group
    ]
    try:
        partitions = result(future, kafka, f"offsets of group {group!r} cannot be read").topic_partitions or []
    except MillstreamError as error:
        if code(error) == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {(tp.topic, tp.partition): tp for tp in partitions if tp.offset >= 0}


def commit(kafka: Kafka, group: str, position: Mapping[tuple[str, int], int]) -> None:
    """Set a group's committed offsets; the group is created when it does not exist. It must have no active members.

    Raises MillstreamError when the group has members (they would overwrite it), or the log does not answer.
    """
    if not position:
        return
    partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in position.items()]
    future = admin(kafka).alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=TIMEOUT_S
    )[group]
    what = f"offsets of group {group!r} cannot be set"
    try:
        done = result(future, kafka, what)
    except MillstreamError as error:
        raise _occupied(group) if code(error) in _MEMBERS else error from error
    for tp in done.topic_partitions or ():
        if tp.error and tp.error.code() != KafkaError.NO_ERROR:
            if tp.error.code() in _MEMBERS:
                raise _occupied(group)
            raise explain(tp.error, kafka, f"{what} in {tp.topic} [{tp.partition}]")


# What brokers say to a commit from outside when the group has members: classic groups the first, KIP-848's the others.
_MEMBERS = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.NON_EMPTY_GROUP}


def _occupied(group: str) -> MillstreamError:
    return MillstreamError(
        f"offsets of group {group!r} cannot be set while it has active members; stop its consumers and try again."
    )


def _lags(kafka: Kafka, names: list[str]) -> list[Lag]:
    if not names:
        return []
    positions = {group: committed(kafka, group) for group in names}
    wanted = {tp for position in positions.values() for tp in position}
    existing = set(topic_names(kafka))  # offsets outlive the topics they were committed for
    ends: Offsets = offsets(kafka, sorted(tp for tp in wanted if tp[0] in existing), LATEST)
    return [
        Lag(group, topic, partition, tp.offset, ends[topic, partition], max(0, ends[topic, partition] - tp.offset))
        for group, position in sorted(positions.items())
        for (topic, partition), tp in sorted(position.items())
        if (topic, partition) in ends
    ]
