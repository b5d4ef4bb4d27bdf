"""Consumer groups over the Admin API: listing them, reading and setting their positions, deleting them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from millstream.client.connect import TIMEOUT_S, admin, code, explain, result
from millstream.settings import Kafka, MillstreamError

T = TypeVar("T")

# How long a broker that has just started may take to find or load the group; longer is said to the user.
SETTLING_S = 10.0
_AGAIN_S = 0.1
# The coordinator of a group is just being found, or loads its groups: asking again helps.
COORDINATING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
# What brokers say to a commit from outside when the group has members: classic groups the first, KIP-848's the others.
_MEMBERS = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.STALE_MEMBER_EPOCH, KafkaError.NON_EMPTY_GROUP}


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


def committed(kafka: Kafka, group: str) -> dict[tuple[str, int], TopicPartition]:
    """Return what a group has committed, by (topic, partition), with the commit's metadata. Empty for an unknown group."""

    def ask() -> list[TopicPartition]:
        asked = [ConsumerGroupTopicPartitions(group)]
        future = admin(kafka).list_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group]
        return result(future, kafka, f"offsets of group {group!r} cannot be read").topic_partitions or []

    try:
        partitions = _settled(ask)
    except MillstreamError as error:
        if code(error) == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {(tp.topic, tp.partition): tp for tp in partitions if tp.offset >= 0}


def committed_by(kafka: Kafka, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], TopicPartition]]:
    """Return what each of the groups has committed, as `committed` does.

    A broker is asked for one group in one request (librdkafka takes no more), but all are under way at the same time.
    """
    asked = {}
    for group in groups:
        request = [ConsumerGroupTopicPartitions(group)]
        asked[group] = admin(kafka).list_consumer_group_offsets(request, request_timeout=TIMEOUT_S)[group]
    found = {}
    for group, future in asked.items():
        try:
            partitions = result(future, kafka, f"offsets of group {group!r} cannot be read").topic_partitions or []
            found[group] = {(tp.topic, tp.partition): tp for tp in partitions if tp.offset >= 0}
        except MillstreamError as error:
            if code(error) not in {*COORDINATING, KafkaError.GROUP_ID_NOT_FOUND}:
                raise
            found[group] = committed(kafka, group)
    return found


def commit(kafka: Kafka, group: str, position: Mapping[tuple[str, int], int]) -> None:
    """Set a group's committed offsets; the group is created when it does not exist. It must have no active members.

    Raises MillstreamError when the group has members (they would overwrite it), or the log does not answer.
    """
    if not position:
        return
    partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in position.items()]
    _settled(lambda: _commit(kafka, group, partitions))


def delete_group(kafka: Kafka, group: str) -> None:
    """Delete a group with its committed offsets. Raises MillstreamError when it has active members or does not exist."""

    def delete() -> None:
        future = admin(kafka).delete_consumer_groups([group], request_timeout=TIMEOUT_S)[group]
        try:
            result(future, kafka, f"group {group!r} cannot be deleted")
        except MillstreamError as error:
            raise _occupied(group, "it cannot be deleted") if code(error) in _MEMBERS else error from error.__cause__

    _settled(delete)


def _commit(kafka: Kafka, group: str, partitions: list[TopicPartition]) -> None:
    future = admin(kafka).alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=TIMEOUT_S
    )[group]
    what = f"offsets of group {group!r} cannot be set"
    try:
        done = result(future, kafka, what)
    except MillstreamError as error:
        raise _occupied(group) if code(error) in _MEMBERS else error from error.__cause__
    for tp in done.topic_partitions or ():
        if tp.error and tp.error.code() != KafkaError.NO_ERROR:
            if tp.error.code() in _MEMBERS:
                raise _occupied(group)
            where = f"{what} in {tp.topic} [{tp.partition}]"
            raise explain(tp.error, kafka, where) from KafkaException(tp.error)


def _settled(act: Callable[[], T]) -> T:
    """Act, and again while the coordinator of the group is just being found or loads its groups: a broker that has started."""
    deadline = time.monotonic() + SETTLING_S
    while True:
        try:
            return act()
        except MillstreamError as error:
            if code(error) not in COORDINATING or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_S)


def _occupied(group: str, what: str = "its offsets cannot be set") -> MillstreamError:
    return MillstreamError(f"group {group!r} has active members, so {what}; stop its consumers and try again.")
