"""AlterPartitionReassignments (key 45), versions 0-1: the only possible place is this broker; going there changes nothing.

Version notes: 1 says whether the replication factor may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: AlterPartitionReassignmentsRequest, version: int
) -> AlterPartitionReassignmentsResponse:
    """One result per partition."""
    if not connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER):
        denied = errors.CLUSTER_AUTHORIZATION_FAILED
        return AlterPartitionReassignmentsResponse(0, request.allow_replication_factor_change, denied, None, [])
    responses = []
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.name)
        count = len(topic.partitions) if topic is not None else 0
        responses.append(
            ReassignableTopicResponse(wanted.name, [_result(broker.node_id, count, part) for part in wanted.partitions])
        )
    return AlterPartitionReassignmentsResponse(0, request.allow_replication_factor_change, 0, None, responses)


def _result(node_id: int, count: int, part: ReassignablePartition) -> ReassignablePartitionResponse:
    index = part.partition_index
    if not 0 <= index < count:
        return ReassignablePartitionResponse(index, errors.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if part.replicas is None:
        return ReassignablePartitionResponse(index, errors.NO_REASSIGNMENT_IN_PROGRESS, None)
    if part.replicas != [node_id]:
        return ReassignablePartitionResponse(index, errors.INVALID_REPLICA_ASSIGNMENT, f"The only broker is {node_id}.")
    return ReassignablePartitionResponse(index, 0, None)
