"""DeleteTopics (key 20), versions 1-6: delete topics by name or (6) id, with what groups committed for them."""

from typing import TYPE_CHECKING

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
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: DeleteTopicsRequest, version: int
) -> DeleteTopicsResponse:
    """One result per topic."""
    wanted = request.topics if version >= 6 else [DeleteTopicState(name) for name in request.topic_names]
    return DeleteTopicsResponse(0, [_delete(broker, each) for each in wanted])


def _delete(broker: "Broker", wanted: DeleteTopicState) -> DeletableTopicResult:
    if wanted.name is not None:
        topic = broker.log.topics.get(wanted.name)
        missing = errors.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = broker.topic_by_id(wanted.topic_id)
        missing = errors.UNKNOWN_TOPIC_ID
    if topic is None:
        return DeletableTopicResult(wanted.name, wanted.topic_id, missing, "This server does not host this topic.")
    if not broker.settings.boolean("delete.topic.enable"):
        return DeletableTopicResult(
            topic.name, topic.id.bytes, errors.TOPIC_DELETION_DISABLED, "delete.topic.enable is false"
        )
    if topic.internal:
        return DeletableTopicResult(topic.name, topic.id.bytes, errors.INVALID_REQUEST, "The topic is internal.")
    try:
        broker.delete_topic(topic)
    except LogError as e:
        return DeletableTopicResult(topic.name, topic.id.bytes, e.code, str(e))
    return DeletableTopicResult(topic.name, topic.id.bytes)
