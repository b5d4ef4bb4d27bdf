"""ListOffsets (key 2), versions 1-11: offsets by time, earliest, latest, of the largest timestamp.

Special timestamps: -1 latest (the last stable offset for read_committed), -2 earliest, -3 of the largest timestamp,
-4 earliest local, -5 latest tiered (what an archive holds), -6 earliest pending upload (none: offset -1). A search by
time that leads into an archive is answered when the segment has been fetched.

Version notes: 2 has the isolation level, 3 throttles after the answer (KIP-219), 4 the leader epoch (KIP-320), 5 knows
OFFSET_NOT_AVAILABLE, 6 is flexible, 7 finds the largest timestamp (KIP-734), 8 the earliest local offset (KIP-405), 9
the last in the archive (KIP-1005), 10 has a timeout (KIP-1075), 11 finds the earliest that is not archived yet
(KIP-1023).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.log import LogError, NotHere
from millstream.protocol import errors
from millstream.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
# Which version introduced a special timestamp; before it, the request is refused as Kafka does.
SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}


def handle(
    broker: Broker, connection: Connection, request: ListOffsetsRequest, version: int
) -> ListOffsetsResponse | asyncio.Future[ListOffsetsResponse]:
    """One answer per partition, now or when what is archived has been fetched."""
    missing: list[tuple[Partition, NotHere]] = []
    response = _answer(broker, connection, request, version, missing)
    if not missing:
        return response
    future: asyncio.Future[ListOffsetsResponse] = broker.loop.create_future()

    # Each fetch brings a partition on, or marks it as failed for a moment; this ends it when the cache is too small.
    left = 1 + 4 * sum(len(wanted.partitions) for wanted in request.topics)

    def look_again() -> None:
        nonlocal left
        if future.done():
            return
        left -= 1
        missing.clear()
        again = _answer(broker, connection, request, version, missing)
        if not missing or not left or not broker.archives.fetch(*missing[0], look_again):
            future.set_result(again)

    if not broker.archives.fetch(*missing[0], look_again):
        return response
    return future


def _answer(
    broker: Broker,
    connection: Connection,
    request: ListOffsetsRequest,
    version: int,
    missing: list[tuple[Partition, NotHere]],
) -> ListOffsetsResponse:
    topics = []
    asked = Counter((t.name, part.partition_index) for t in request.topics for part in t.partitions)
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.name)
        denied = not connection.may(Operation.DESCRIBE, Resource.TOPIC, wanted.name)
        parts = []
        for part in wanted.partitions:
            index = part.partition_index
            if denied:
                parts.append(ListOffsetsPartitionResponse(index, errors.TOPIC_AUTHORIZATION_FAILED))
                continue
            if (times := asked[wanted.name, index]) != 1:  # asked for twice: refused, once
                if times:
                    parts.append(ListOffsetsPartitionResponse(index, errors.INVALID_REQUEST))
                    asked[wanted.name, index] = 0
                continue
            if part.timestamp < 0 and version < SINCE.get(part.timestamp, 0 if part.timestamp >= -2 else 99):
                parts.append(ListOffsetsPartitionResponse(index, errors.UNSUPPORTED_VERSION))
            elif topic is None or not 0 <= index < len(topic.partitions):
                parts.append(ListOffsetsPartitionResponse(index, errors.UNKNOWN_TOPIC_OR_PARTITION))
            elif part.current_leader_epoch > 0:
                parts.append(ListOffsetsPartitionResponse(index, errors.UNKNOWN_LEADER_EPOCH))
            else:
                parts.append(_find(topic.partitions[index], part, request.isolation_level == 1, version, missing))
        topics.append(ListOffsetsTopicResponse(wanted.name, parts))
    return ListOffsetsResponse(0, topics)


def _find(
    partition: Partition,
    wanted: ListOffsetsPartition,
    committed: bool,
    version: int,
    missing: list[tuple[Partition, NotHere]],
) -> ListOffsetsPartitionResponse:
    timestamp = wanted.timestamp
    found: tuple[int, int] | None
    end = partition.last_stable_offset if committed else partition.high_watermark
    try:
        if timestamp == LATEST:
            found = (end, -1)
        elif timestamp == EARLIEST:
            found = (partition.start_offset, -1)
        elif timestamp == EARLIEST_LOCAL:
            found = (partition.local_start_offset, -1)
        elif timestamp == LATEST_TIERED and partition.archived_offset > partition.start_offset:
            found = (partition.archived_offset - 1, -1)
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING):
            return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, -1, -1)
        elif timestamp == MAX_TIMESTAMP:
            found = partition.offset_of_max_timestamp() if partition.start_offset < end else None
        else:
            found = partition.offset_for_time(timestamp)
    except NotHere as e:
        missing.append((partition, e))
        return ListOffsetsPartitionResponse(wanted.partition_index, e.code)
    except LogError as e:
        return ListOffsetsPartitionResponse(wanted.partition_index, e.code)
    if found is None or (timestamp not in (LATEST, EARLIEST, EARLIEST_LOCAL) and found[0] >= end):
        return ListOffsetsPartitionResponse(wanted.partition_index, 0, -1, -1, -1)
    return ListOffsetsPartitionResponse(wanted.partition_index, 0, found[1], found[0], 0 if version >= 4 else -1)
