"""OffsetForLeaderEpoch (key 23), versions 2-4: where a leader's epoch ended. There is one epoch, 0: it ends at the end.

Version notes: 3 has a replica id, 4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic


def handle(
    broker: Broker, connection: Connection, request: OffsetForLeaderEpochRequest, version: int
) -> OffsetForLeaderEpochResponse:
    """The end offset for epoch 0, unknown for any other."""
    topics = []
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.topic)
        if connection.may(Operation.DESCRIBE, Resource.TOPIC, wanted.topic):
            ends = [_end(topic, part) for part in wanted.partitions]
        else:
            ends = [EpochEndOffset(errors.TOPIC_AUTHORIZATION_FAILED, part.partition) for part in wanted.partitions]
        topics.append(OffsetForLeaderTopicResult(wanted.topic, ends))
    return OffsetForLeaderEpochResponse(0, topics)


def _end(topic: Topic | None, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    index = wanted.partition
    if topic is None or not 0 <= index < len(topic.partitions):
        return EpochEndOffset(errors.UNKNOWN_TOPIC_OR_PARTITION, index)
    if wanted.current_leader_epoch > 0:
        return EpochEndOffset(errors.UNKNOWN_LEADER_EPOCH, index)
    if wanted.leader_epoch != 0:
        return EpochEndOffset(0, index, -1, -1)
    return EpochEndOffset(0, index, 0, topic.partitions[index].end_offset)
