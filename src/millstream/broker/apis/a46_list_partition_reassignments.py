"""ListPartitionReassignments (key 46), version 0: none is ever under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: ListPartitionReassignmentsRequest, version: int
) -> ListPartitionReassignmentsResponse:
    """An empty list."""
    if not connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER):
        return ListPartitionReassignmentsResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, None, [])
    return ListPartitionReassignmentsResponse(0, 0, None, [])
