"""DescribeLogDirs (key 35), versions 1-5: the one folder, the sizes of its partitions and of its disk.

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible, 3 has an error of its own, 4 tells the disk's
bytes (KIP-827), 5 whether the folder is cordoned.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: DescribeLogDirsRequest, version: int
) -> DescribeLogDirsResponse:
    """Sizes of the partitions asked for, or of all."""
    if not connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER):
        return DescribeLogDirsResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED if version >= 3 else 0, [])
    wanted: dict[str, list[int]] | None = None
    if request.topics is not None:
        wanted = {t.topic: t.partitions for t in request.topics}
    topics = []
    for topic in broker.log.topics.values():
        if wanted is not None and topic.name not in wanted:
            continue
        indexes = range(len(topic.partitions)) if wanted is None else wanted[topic.name]
        parts = [
            DescribeLogDirsPartition(index, topic.partitions[index].size, 0, False)
            for index in indexes
            if 0 <= index < len(topic.partitions)
        ]
        if parts:
            topics.append(DescribeLogDirsTopic(topic.name, parts))
    disk = shutil.disk_usage(broker.log.folder)
    total, usable = (disk.total, disk.free) if version >= 4 else (-1, -1)
    result = DescribeLogDirsResult(0, str(broker.log.folder.absolute()), topics, total, usable)
    return DescribeLogDirsResponse(0, 0, [result])
