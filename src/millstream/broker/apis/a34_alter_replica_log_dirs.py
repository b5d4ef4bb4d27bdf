"""AlterReplicaLogDirs (key 34), versions 1-2: there is one folder; moving a partition there changes nothing.

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: AlterReplicaLogDirsRequest, version: int
) -> AlterReplicaLogDirsResponse:
    """LOG_DIR_NOT_FOUND for any other folder."""
    ours = str(broker.log.folder.absolute())
    allowed = connection.may(Operation.ALTER, Resource.CLUSTER, CLUSTER)
    results = []
    for folder in request.dirs:
        for wanted in folder.topics:
            topic = broker.log.topics.get(wanted.name)
            parts = []
            for index in wanted.partitions:
                if not allowed:
                    code = errors.CLUSTER_AUTHORIZATION_FAILED
                elif folder.path != ours:
                    code = errors.LOG_DIR_NOT_FOUND
                elif topic is None or not 0 <= index < len(topic.partitions):
                    code = errors.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    code = errors.NONE
                parts.append(AlterReplicaLogDirPartitionResult(index, code))
            results.append(AlterReplicaLogDirTopicResult(wanted.name, parts))
    return AlterReplicaLogDirsResponse(0, results)
