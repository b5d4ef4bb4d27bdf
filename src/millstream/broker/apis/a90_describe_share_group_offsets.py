"""DescribeShareGroupOffsets (key 90), versions 0-1: where share groups stand in their partitions (KIP-932).

The lag counts the records from the start offset to the end whose delivery is not complete.

Version notes: 1 tells the lag (KIP-1226).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.groups.share import ShareGroup
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.share.records import Where
from millstream.protocol import errors
from millstream.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic

# Of the errors of single partitions and topics, here and in Alter and DeleteShareGroupOffsets; Kafka's.
TEXTS = {
    errors.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    errors.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    errors.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
}


def handle(
    broker: Broker, connection: Connection, request: DescribeShareGroupOffsetsRequest, version: int
) -> DescribeShareGroupOffsetsResponse:
    """One result per group."""
    return DescribeShareGroupOffsetsResponse(0, [_group(connection, wanted, version) for wanted in request.groups])


def _group(
    connection: Connection, wanted: DescribeShareGroupOffsetsRequestGroup, version: int
) -> DescribeShareGroupOffsetsResponseGroup:
    broker, group_id = connection.broker, wanted.group_id
    if not connection.may(Operation.DESCRIBE, Resource.GROUP, group_id):
        text = "Group authorization failed."
        return DescribeShareGroupOffsetsResponseGroup(group_id, [], errors.GROUP_AUTHORIZATION_FAILED, text)
    group = broker.groups.share.find(group_id)
    topics = []
    if wanted.topics is None:
        if group is None:
            text = f"Group {group_id} not found."
            return DescribeShareGroupOffsetsResponseGroup(group_id, [], errors.GROUP_ID_NOT_FOUND, text)
        for topic_id, indexes in group.initialized.items():
            known = broker.topic_by_id(topic_id)
            if known is not None and connection.may(Operation.DESCRIBE, Resource.TOPIC, known.name):
                topics.append(_topic(broker, group, known, sorted(indexes), version))
        return DescribeShareGroupOffsetsResponseGroup(group_id, topics)
    for each in wanted.topics:
        known = broker.log.topics.get(each.topic_name)
        if not connection.may(Operation.DESCRIBE, Resource.TOPIC, each.topic_name):
            topics.append(_refused(each.topic_name, each.partitions, errors.TOPIC_AUTHORIZATION_FAILED))
        elif known is None:
            parts = [DescribeShareGroupOffsetsResponsePartition(index, -1) for index in each.partitions]
            topics.append(DescribeShareGroupOffsetsResponseTopic(each.topic_name, partitions=parts))
        else:
            topics.append(_topic(broker, group, known, each.partitions, version))
    return DescribeShareGroupOffsetsResponseGroup(group_id, topics)


def _refused(name: str, indexes: list[int], code: int) -> DescribeShareGroupOffsetsResponseTopic:
    parts = [
        DescribeShareGroupOffsetsResponsePartition(index, -1, error_code=code, error_message=TEXTS[code])
        for index in indexes
    ]
    return DescribeShareGroupOffsetsResponseTopic(name, partitions=parts)


def _topic(
    broker: Broker, group: ShareGroup | None, topic: Topic, indexes: list[int], version: int
) -> DescribeShareGroupOffsetsResponseTopic:
    """Of a group or topic that is not there, -1 as of a partition that the group has not seen: as in Kafka."""
    begun = group.initialized.get(topic.id.bytes, set()) if group is not None else set()
    parts = []
    for index in indexes:
        start, done = -1, 0
        if group is not None and index in begun and index < len(topic.partitions):
            begin = topic.partitions[index].start_offset
            start, done = broker.groups.share_partitions.standing(Where(group.id, topic.id.bytes, index), begin)
        part = DescribeShareGroupOffsetsResponsePartition(index, start)
        if start >= 0 and version >= 1:
            partition = topic.partitions[index]
            part.lag = max(partition.high_watermark - max(start, partition.start_offset) - done, 0)
        parts.append(part)
    return DescribeShareGroupOffsetsResponseTopic(topic.name, topic.id.bytes, parts)
