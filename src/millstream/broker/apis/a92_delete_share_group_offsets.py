"""DeleteShareGroupOffsets (key 92), version 0: have a share group without members forget topics (KIP-932)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.apis.a90_describe_share_group_offsets import TEXTS
from millstream.broker.groups.share import ShareGroup
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: DeleteShareGroupOffsetsRequest, version: int
) -> DeleteShareGroupOffsetsResponse | asyncio.Future[DeleteShareGroupOffsetsResponse]:
    """One result per topic."""
    group_id = request.group_id
    if not connection.may(Operation.DELETE, Resource.GROUP, group_id):
        return DeleteShareGroupOffsetsResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    if not group_id:
        return DeleteShareGroupOffsetsResponse(0, errors.INVALID_GROUP_ID)
    group = broker.groups.share.find(group_id)
    if group is None:
        return DeleteShareGroupOffsetsResponse(0, errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not group.empty:
        return DeleteShareGroupOffsetsResponse(0, errors.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
    topics = [_forget(connection, group, topic.topic_name) for topic in request.topics]
    response = DeleteShareGroupOffsetsResponse(0, 0, None, topics)
    lost = DeleteShareGroupOffsetsResponse(0, errors.COORDINATOR_NOT_AVAILABLE)
    return broker.flusher.answer(broker.groups.share.unsynced(group_id), response, lambda *_: lost)


def _forget(connection: Connection, group: ShareGroup, name: str) -> DeleteShareGroupOffsetsResponseTopic:
    broker = connection.broker
    topic = broker.log.topics.get(name)
    if not connection.may(Operation.READ, Resource.TOPIC, name):
        code = errors.TOPIC_AUTHORIZATION_FAILED
    elif topic is None or topic.id.bytes not in group.initialized:
        code = errors.UNKNOWN_TOPIC_OR_PARTITION
    else:
        code = broker.groups.share.forget(group, topic.id.bytes)
    topic_id = topic.id.bytes if topic is not None else bytes(16)
    return DeleteShareGroupOffsetsResponseTopic(name, topic_id, code, TEXTS.get(code))
