"""Metadata (key 3), versions 0-13: the broker, topics with ids and partitions; creates topics when asked and allowed.

Topics by name or (from version 10) by id; null asks for all. A missing topic is created when the request allows it
(always before version 4) and auto.create.topics.enable is true. The one broker leads every partition, epoch 0.
Gaps: authorized operations are all of them when asked for (there are no ACLs yet).
"""

import logging
from typing import TYPE_CHECKING

from millstream.broker.topics import TopicError, check_name
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection
    from millstream.log import Topic

logger = logging.getLogger(__name__)
NOT_ASKED = -0x80000000
# Bit sets of AclOperation: describe, read, write, create, delete, alter, describe configs, alter configs / cluster action…
TOPIC_OPERATIONS = 0b0000_1101_1111_1000
CLUSTER_OPERATIONS = 0b0001_1111_1010_0000


def handle(broker: "Broker", connection: "Connection", request: MetadataRequest, version: int) -> MetadataResponse:
    """The broker and the topics asked for."""
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    brokers = [MetadataResponseBroker(broker.node_id, broker.host, broker.port)]
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [describe(broker, topic, operations) for topic in broker.log.topics.values()]
    else:
        topics = []
        for want in wanted:
            if want.name is None or (version >= 10 and want.topic_id != ZERO_UUID):
                topic = broker.topic_by_id(want.topic_id)
                if topic is None:
                    topics.append(
                        MetadataResponseTopic(errors.UNKNOWN_TOPIC_ID, None if version >= 12 else "", want.topic_id)
                    )
                else:
                    topics.append(describe(broker, topic, operations))
                continue
            topic = broker.log.topics.get(want.name)
            if topic is None:
                topic, code = _missing(broker, want.name, version < 4 or request.allow_auto_topic_creation)
                if topic is None:
                    topics.append(MetadataResponseTopic(code, want.name))
                    continue
            topics.append(describe(broker, topic, operations))
    cluster = NOT_ASKED
    if request.include_cluster_authorized_operations and 8 <= version <= 10:
        cluster = CLUSTER_OPERATIONS
    return MetadataResponse(0, brokers, broker.log.cluster_id, broker.node_id, topics, cluster)


def _missing(broker: "Broker", name: str, create: bool) -> "tuple[Topic | None, int]":
    """Create a missing topic if that is allowed."""
    try:
        check_name(name)
        if not create or not broker.settings.boolean("auto.create.topics.enable"):
            return None, errors.UNKNOWN_TOPIC_OR_PARTITION
        return broker.create_topic(name, -1, {}), 0
    except TopicError as e:
        return None, e.code
    except LogError as e:
        logger.warning("topic %s could not be created: %s", name, e)
        return None, e.code


def describe(broker: "Broker", topic: "Topic", operations: int = NOT_ASKED) -> MetadataResponseTopic:
    """A topic as metadata."""
    node = [broker.node_id]
    partitions = [
        MetadataResponsePartition(0, index, broker.node_id, 0, node, node, []) for index in range(len(topic.partitions))
    ]
    return MetadataResponseTopic(0, topic.name, topic.id.bytes, topic.internal, partitions, operations)
