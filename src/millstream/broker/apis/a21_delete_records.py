"""DeleteRecords (key 21), versions 0-2: move a partition's start forward; -1 means up to the end.

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic


def handle(
    broker: Broker, connection: Connection, request: DeleteRecordsRequest, version: int
) -> DeleteRecordsResponse:
    """The new start of each partition."""
    topics = []
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.name)
        if connection.may(Operation.DELETE, Resource.TOPIC, wanted.name):
            parts = [_delete(topic, part) for part in wanted.partitions]
        else:
            code = errors.TOPIC_AUTHORIZATION_FAILED
            parts = [DeleteRecordsPartitionResult(part.partition_index, -1, code) for part in wanted.partitions]
        topics.append(DeleteRecordsTopicResult(wanted.name, parts))
    return DeleteRecordsResponse(0, topics)


def _delete(topic: Topic | None, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    index = wanted.partition_index
    if topic is None or not 0 <= index < len(topic.partitions):
        return DeleteRecordsPartitionResult(index, -1, errors.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.internal:
        return DeleteRecordsPartitionResult(index, -1, errors.INVALID_TOPIC_EXCEPTION)
    if not topic.config.delete:  # as in Kafka: a topic that is only compacted keeps its records
        return DeleteRecordsPartitionResult(index, -1, errors.POLICY_VIOLATION)
    partition = topic.partitions[index]
    offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
    if not 0 <= offset <= partition.high_watermark:
        return DeleteRecordsPartitionResult(index, -1, errors.OFFSET_OUT_OF_RANGE)
    try:
        return DeleteRecordsPartitionResult(index, partition.delete_before(offset))
    except LogError as e:
        return DeleteRecordsPartitionResult(index, -1, e.code)
