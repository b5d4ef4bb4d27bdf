"""OffsetDelete (key 47), version 0: remove committed offsets of topics that the group does not subscribe to now.

While any topic is `commit` the answer waits until the removal is on disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: OffsetDeleteRequest, version: int
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    """One result per partition."""
    if not connection.may(Operation.DELETE, Resource.GROUP, request.group_id):
        return OffsetDeleteResponse(errors.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return OffsetDeleteResponse(errors.INVALID_GROUP_ID)
    if error := broker.groups.commits.check_delete(request.group_id):
        return OffsetDeleteResponse(error)
    places = []
    topics = []
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.name)
        parts = []
        for part in wanted.partitions:
            code = 0
            if not connection.may(Operation.READ, Resource.TOPIC, wanted.name):
                code = errors.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= part.partition_index < len(topic.partitions):
                code = errors.UNKNOWN_TOPIC_OR_PARTITION
            elif broker.groups.commits.follows(request.group_id, wanted.name):
                code = errors.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                places.append((wanted.name, part.partition_index))
            parts.append(OffsetDeleteResponsePartition(part.partition_index, code))
        topics.append(OffsetDeleteResponseTopic(wanted.name, parts))
    response = OffsetDeleteResponse(broker.groups.commits.forget(request.group_id, places), 0, topics)
    unsynced = broker.groups.commits.removed([request.group_id]) if places and not response.error_code else []
    refused = OffsetDeleteResponse(errors.COORDINATOR_NOT_AVAILABLE)
    return broker.flusher.answer(unsynced, response, lambda *_: refused)
