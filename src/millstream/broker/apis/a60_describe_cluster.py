"""DescribeCluster (key 60), versions 0-2: this broker and the cluster's id.

Asked for controllers (endpoint type 2) it answers MISMATCHED_ENDPOINT_TYPE, as a Kafka broker does.

Version notes: 1 asks for brokers or controllers (KIP-919), 2 for fenced brokers too (KIP-1073).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a03_metadata import NOT_ASKED
from millstream.broker.security.acls import CLUSTER, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

BROKERS = 1


def handle(
    broker: Broker, connection: Connection, request: DescribeClusterRequest, version: int
) -> DescribeClusterResponse:
    """One broker, which is the controller too."""
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            0, errors.MISMATCHED_ENDPOINT_TYPE, "The request was sent to an endpoint of the wrong type."
        )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = connection.operations(Resource.CLUSTER, CLUSTER)
    brokers = [DescribeClusterBroker(broker.node_id, connection.listener.host, connection.listener.port)]
    return DescribeClusterResponse(0, 0, None, BROKERS, broker.log.cluster_id, broker.node_id, brokers, operations)
