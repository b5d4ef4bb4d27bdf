"""DeleteTopics (key 20), versions 1-6: delete topics by name or (6) id, with what groups committed for them.

Partitions count against controller_mutation_rate; strict from version 5 on.

When a `commit` topic goes, that is on disk before the answer: another topic of the name must not be read from offsets of
this one.

Version notes: 2 throttles after the answer (KIP-219), 3 knows TOPIC_DELETION_DISABLED, 4 is flexible, 5 has texts of
errors and THROTTLING_QUOTA_EXCEEDED (KIP-599), 6 names topics by id (KIP-516).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.mutations import Mutations
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition

STRICT = 5  # clients understand THROTTLING_QUOTA_EXCEEDED


def handle(
    broker: Broker, connection: Connection, request: DeleteTopicsRequest, version: int
) -> DeleteTopicsResponse | asyncio.Future[DeleteTopicsResponse]:
    """One result per topic."""
    wanted = request.topics if version >= 6 else [DeleteTopicState(name) for name in request.topic_names]
    committed = broker.log.has_commit
    mutations = Mutations(connection, strict=version >= STRICT)
    response = DeleteTopicsResponse(0, [_delete(connection, each, mutations) for each in wanted])
    mutations.tell(response)
    unsynced = broker.groups.directory.store.unsynced() if committed else []
    return broker.flusher.answer(unsynced, response, _not_synced)


def _not_synced(response: DeleteTopicsResponse, _: dict[Partition, str]) -> DeleteTopicsResponse:
    """The answer when the disk refused: the topic is gone, what was committed for it may come back."""
    for result in response.responses:
        if not result.error_code:
            result.error_code, result.error_message = errors.KAFKA_STORAGE_ERROR, "its offsets could not be removed"
    return response


def _delete(connection: Connection, wanted: DeleteTopicState, mutations: Mutations) -> DeletableTopicResult:
    broker = connection.broker
    if wanted.name is not None:
        topic = broker.log.topics.get(wanted.name)
        missing = errors.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = broker.topic_by_id(wanted.topic_id)
        missing = errors.UNKNOWN_TOPIC_ID
    name = topic.name if topic is not None else wanted.name
    if name is not None and not connection.may(Operation.DELETE, Resource.TOPIC, name):
        # A client that asks by id learns the name only if it may describe the topic.
        shown = name if wanted.name or connection.may(Operation.DESCRIBE, Resource.TOPIC, name) else None
        return DeletableTopicResult(shown, wanted.topic_id, errors.TOPIC_AUTHORIZATION_FAILED, None)
    if topic is None:
        return DeletableTopicResult(wanted.name, wanted.topic_id, missing, "This server does not host this topic.")
    if not broker.settings.boolean("delete.topic.enable"):
        return DeletableTopicResult(
            topic.name, topic.id.bytes, errors.TOPIC_DELETION_DISABLED, "delete.topic.enable is false"
        )
    if topic.internal:
        return DeletableTopicResult(topic.name, topic.id.bytes, errors.INVALID_REQUEST, "The topic is internal.")
    try:
        mutations.count(len(topic.partitions))
        broker.delete_topic(topic)
    except (Refused, LogError) as e:
        return DeletableTopicResult(topic.name, topic.id.bytes, e.code, str(e))
    return DeletableTopicResult(topic.name, topic.id.bytes)
