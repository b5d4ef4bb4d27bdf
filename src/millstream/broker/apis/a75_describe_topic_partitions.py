"""DescribeTopicPartitions (key 75), version 0: topics in name order, in pages that a cursor continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.topics import check_name
from millstream.protocol import errors
from millstream.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

# Partitions in one page, whatever the client asks for (Kafka: max.request.partition.size.limit).
MAX_PAGE = 2000


def handle(
    broker: Broker, connection: Connection, request: DescribeTopicPartitionsRequest, version: int
) -> DescribeTopicPartitionsResponse:
    """The next page."""
    cursor = request.cursor
    asked = sorted({t.name for t in request.topics})
    names = asked or [n for n in sorted(broker.log.topics) if connection.may(Operation.DESCRIBE, Resource.TOPIC, n)]
    first = 0
    if cursor is not None:
        if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked):
            refused = [DescribeTopicPartitionsResponseTopic(errors.INVALID_REQUEST, name) for name in asked]
            return DescribeTopicPartitionsResponse(0, refused, None)
        names = [name for name in names if name >= cursor.topic_name]
        first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
    left = max(1, min(request.response_partition_limit, MAX_PAGE))
    topics = []
    node = [broker.node_id]
    for name in names:
        topic = broker.log.topics.get(name)
        if not connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
            topics.append(DescribeTopicPartitionsResponseTopic(errors.TOPIC_AUTHORIZATION_FAILED, name))
            first = 0
            continue
        if not left:
            return DescribeTopicPartitionsResponse(0, topics, DescribeTopicPartitionsResponseCursor(name, first))
        if topic is None:
            topics.append(DescribeTopicPartitionsResponseTopic(_missing(name), name))
            first = 0
            continue
        last = min(len(topic.partitions), first + left)
        parts = [
            DescribeTopicPartitionsResponsePartition(0, index, broker.node_id, 0, node, node, [], [], [])
            for index in range(first, last)
        ]
        left -= len(parts)
        topics.append(
            DescribeTopicPartitionsResponseTopic(
                0, name, topic.id.bytes, topic.internal, parts, connection.operations(Resource.TOPIC, name)
            )
        )
        if last < len(topic.partitions):
            return DescribeTopicPartitionsResponse(0, topics, DescribeTopicPartitionsResponseCursor(name, last))
        first = 0
    return DescribeTopicPartitionsResponse(0, topics, None)


def _missing(name: str) -> int:
    try:
        check_name(name)
    except Refused as e:
        return e.code
    return errors.UNKNOWN_TOPIC_OR_PARTITION
