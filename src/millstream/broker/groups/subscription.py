"""What consumers of the classic protocol say and are told in bytes that the broker could pass on unread (ConsumerProtocol).

A version (int16), then the message. Versions above those that are known are read as the highest one that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from millstream.protocol.wire import ProtocolError

Assigned = dict[str, set[int]]  # topic -> partitions


def version_of(data: bytes) -> int:
    """The version that bytes begin with. Raises ProtocolError."""
    if len(data) < 2:
        raise ProtocolError("a subscription or assignment without its version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError("a subscription or assignment of a negative version")
    return version


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """What a consumer sends as metadata when it joins. Raises ProtocolError."""
    last = ConsumerProtocolSubscription.VERSIONS[1]
    return ConsumerProtocolSubscription.decode(data, min(version_of(data), last), 2)


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics of the members' subscriptions; None when one cannot be read (ConsumerProtocol.deserializeVersion)."""
    topics: set[str] = set()
    for data in metadata:
        try:
            version_of(data)
            # The beginning is the same in all versions.
            topics.update(ConsumerProtocolSubscription.decode(data, 0, 2).topics)
        except ProtocolError:
            return None
    return frozenset(topics)


def read_assignment(data: bytes) -> Assigned:
    """What a leader has assigned to a member; nothing if there is nothing. Raises ProtocolError."""
    if not data:
        return {}
    last = ConsumerProtocolAssignment.VERSIONS[1]
    assignment = ConsumerProtocolAssignment.decode(data, min(version_of(data), last), 2)
    return {each.topic: set(each.partitions) for each in assignment.assigned_partitions}


def write_assignment(assigned: Mapping[str, Iterable[int]], subscription: bytes) -> bytes:
    """An assignment in the version of the member's own subscription. Raises ProtocolError."""
    version = min(version_of(subscription), ConsumerProtocolAssignment.VERSIONS[1])
    parts = [ConsumerProtocolAssignmentTopicPartition(topic, sorted(indexes)) for topic, indexes in assigned.items()]
    return version.to_bytes(2, "big") + ConsumerProtocolAssignment(parts).encode(version)
