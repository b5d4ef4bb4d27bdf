"""Metadata (key 3), versions 0-13: the broker, topics with ids and partitions; creates topics when asked and allowed.

Topics by name or (from version 10) by id; null asks for all. A missing topic is created when the request allows it
(always before version 4) and auto.create.topics.enable is true; while controller_mutation_rate is exceeded it stays
missing, and clients ask again. The one broker leads every partition, epoch 0.

Version notes: 1 asks for all topics with null and tells racks and the controller, 2 the cluster's id, 3 throttle times,
4 says whether topics may be created, 5 tells offline replicas, 6 throttles after the answer (KIP-219), 7 tells the
leader epoch (KIP-320), 8 the operations that are allowed (KIP-430), 9 is flexible, 10 tells ids (KIP-516), 11 leaves
the cluster's operations to DescribeCluster (KIP-700), 12 asks by id, 13 has an error of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.mutations import Mutations
from millstream.broker.topics import check_name
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
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic

_log = logging.getLogger(__name__)
NOT_ASKED = -0x80000000


def handle(broker: Broker, connection: Connection, request: MetadataRequest, version: int) -> MetadataResponse:
    """The broker and the topics asked for."""
    asked = request.include_topic_authorized_operations
    brokers = [MetadataResponseBroker(broker.node_id, connection.listener.host, connection.listener.port)]
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [
            describe(broker, topic, connection, asked)
            for topic in broker.log.topics.values()
            if connection.may(Operation.DESCRIBE, Resource.TOPIC, topic.name)
        ]
    else:
        topics = []
        for want in wanted:
            if want.name is None or (version >= 10 and want.topic_id != ZERO_UUID):
                topic = broker.topic_by_id(want.topic_id)
                if topic is None:
                    topics.append(
                        MetadataResponseTopic(errors.UNKNOWN_TOPIC_ID, None if version >= 12 else "", want.topic_id)
                    )
                elif not connection.may(Operation.DESCRIBE, Resource.TOPIC, topic.name):
                    # Names of topics that a client may not see are not told.
                    code = errors.TOPIC_AUTHORIZATION_FAILED
                    topics.append(MetadataResponseTopic(code, None if version >= 12 else "", want.topic_id))
                else:
                    topics.append(describe(broker, topic, connection, asked))
                continue
            if not connection.may(Operation.DESCRIBE, Resource.TOPIC, want.name):
                topics.append(MetadataResponseTopic(errors.TOPIC_AUTHORIZATION_FAILED, want.name))
                continue
            topic = broker.log.topics.get(want.name)
            if topic is None:
                topic, code = _missing(broker, connection, want.name, version < 4 or request.allow_auto_topic_creation)
                if topic is None:
                    topics.append(MetadataResponseTopic(code, want.name))
                    continue
            topics.append(describe(broker, topic, connection, asked))
    cluster = NOT_ASKED
    if request.include_cluster_authorized_operations and 8 <= version <= 10:
        cluster = connection.operations(Resource.CLUSTER, CLUSTER)
    return MetadataResponse(0, brokers, broker.log.cluster_id, broker.node_id, topics, cluster)


def _missing(broker: Broker, connection: Connection, name: str, create: bool) -> tuple[Topic | None, int]:
    """Create a missing topic if that is allowed."""
    try:
        check_name(name)
        if not create or not broker.settings.boolean("auto.create.topics.enable"):
            return None, errors.UNKNOWN_TOPIC_OR_PARTITION
        if not (
            connection.may(Operation.CREATE, Resource.CLUSTER, CLUSTER)
            or connection.may(Operation.CREATE, Resource.TOPIC, name)
        ):
            return None, errors.TOPIC_AUTHORIZATION_FAILED
        Mutations(connection, strict=True).count(broker.settings.integer("num.partitions"))
        return broker.create_topic(name, -1, {}), 0
    except Refused as e:
        throttled = e.code == errors.THROTTLING_QUOTA_EXCEEDED
        return None, errors.UNKNOWN_TOPIC_OR_PARTITION if throttled else e.code
    except LogError as e:
        _log.warning("topic %s could not be created: %s", name, e)
        return None, e.code


def describe(broker: Broker, topic: Topic, connection: Connection, with_operations: bool) -> MetadataResponseTopic:
    """A topic as metadata."""
    operations = connection.operations(Resource.TOPIC, topic.name) if with_operations else NOT_ASKED
    node = [broker.node_id]
    partitions = [
        MetadataResponsePartition(0, index, broker.node_id, 0, node, node, []) for index in range(len(topic.partitions))
    ]
    return MetadataResponseTopic(0, topic.name, topic.id.bytes, topic.internal, partitions, operations)
