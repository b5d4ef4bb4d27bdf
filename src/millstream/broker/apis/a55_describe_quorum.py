"""DescribeQuorum (key 55), versions 0-2: tools ask for it to see the controllers; this broker is its own, the only voter.

Version notes: 1 tells times of fetches (KIP-836), 2 texts of errors, nodes and folders (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

METADATA_TOPIC = "__cluster_metadata"


def handle(
    broker: Broker, connection: Connection, request: DescribeQuorumRequest, version: int
) -> DescribeQuorumResponse:
    """One voter, for the metadata topic only."""
    if not connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER):
        return DescribeQuorumResponse(errors.CLUSTER_AUTHORIZATION_FAILED, None, [])
    topics = []
    for wanted in request.topics:
        parts = []
        for part in wanted.partitions:
            if wanted.topic_name != METADATA_TOPIC or part.partition_index:
                code = errors.UNKNOWN_TOPIC_OR_PARTITION
                parts.append(DescribeQuorumResponsePartitionData(part.partition_index, code, None))
            else:
                voter = ReplicaState(broker.node_id)
                parts.append(DescribeQuorumResponsePartitionData(0, 0, None, broker.node_id, 0, 0, [voter], []))
        topics.append(DescribeQuorumResponseTopicData(wanted.topic_name, parts))
    at = connection.listener
    nodes = [Node(broker.node_id, [Listener(at.protocol, at.host, at.port)])] if version >= 2 else []
    return DescribeQuorumResponse(0, None, topics, nodes)
