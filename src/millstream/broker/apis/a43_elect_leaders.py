"""ElectLeaders (key 43), versions 0-2: one broker leads for ever, so no election is ever needed.

Version notes: 1 has kinds of elections and an error of its own (KIP-460), 2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
    """ELECTION_NOT_NEEDED for each partition asked for; nothing when all were."""
    if not connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER):
        return ElectLeadersResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, [])
    results = []
    for wanted in request.topic_partitions or ():
        topic = broker.log.topics.get(wanted.topic)
        parts = []
        for index in wanted.partitions:
            if topic is None or not 0 <= index < len(topic.partitions):
                parts.append(PartitionResult(index, errors.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."))
            else:
                parts.append(PartitionResult(index, errors.ELECTION_NOT_NEEDED, "Leader election not needed."))
        results.append(ReplicaElectionResult(wanted.topic, parts))
    return ElectLeadersResponse(0, 0, results)
