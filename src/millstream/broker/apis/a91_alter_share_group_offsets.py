"""AlterShareGroupOffsets (key 91), version 0: have a share group without members begin elsewhere (KIP-932).

What was acknowledged behind the new start is forgotten.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.apis.a90_describe_share_group_offsets import TEXTS
from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: AlterShareGroupOffsetsRequest, version: int
) -> AlterShareGroupOffsetsResponse | asyncio.Future[AlterShareGroupOffsetsResponse]:
    """One result per partition."""
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return AlterShareGroupOffsetsResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return AlterShareGroupOffsetsResponse(0, errors.INVALID_GROUP_ID)
    starts, refused = {}, {}
    for topic in request.topics:
        known = broker.log.topics.get(topic.topic_name)
        may = connection.may(Operation.READ, Resource.TOPIC, topic.topic_name)
        for part in topic.partitions:
            place = topic.topic_name, part.partition_index
            if not may:
                refused[place] = errors.TOPIC_AUTHORIZATION_FAILED
            elif known is None or not 0 <= part.partition_index < len(known.partitions):
                refused[place] = errors.UNKNOWN_TOPIC_OR_PARTITION
            else:
                starts[place] = part.start_offset
    try:
        results = {**refused, **broker.groups.share.alter(request.group_id, starts)}
    except Refused as e:
        return AlterShareGroupOffsetsResponse(0, e.code, str(e))
    topics = []
    for topic in request.topics:
        parts = []
        for part in topic.partitions:
            code = results[topic.topic_name, part.partition_index]
            text = TEXTS.get(code)
            parts.append(AlterShareGroupOffsetsResponsePartition(part.partition_index, code, text))
        known = broker.log.topics.get(topic.topic_name)
        topic_id = known.id.bytes if known is not None else bytes(16)
        topics.append(AlterShareGroupOffsetsResponseTopic(topic.topic_name, topic_id, parts))
    response = AlterShareGroupOffsetsResponse(0, 0, None, topics)
    lost = AlterShareGroupOffsetsResponse(0, errors.COORDINATOR_NOT_AVAILABLE)
    return broker.flusher.answer(broker.groups.share.unsynced(request.group_id), response, lambda *_: lost)
