"""OffsetFetch (key 9), versions 1-10: a group's committed offsets.

Null topics ask for all. With require-stable, a partition with an offset pending in a transaction answers
UNSTABLE_OFFSET_COMMIT and the client asks again. From version 8 several groups at once, from 9 member epochs of the new
group protocol are checked, version 10 names topics by id. What was committed for a `commit` topic is shown when it is
on disk.

Version notes: 2 asks for all topics and has an error of its own, 3 tells throttle times, 4 throttles after the answer
(KIP-219), 5 tells the leader epoch (KIP-320), 6 is flexible, 7 can insist on what is stable (KIP-447), 8 asks for
several groups (KIP-709), 9 is for the new group protocol too (KIP-848), 10 names topics by id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.groups.offsets import Offsets
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition


def handle(
    broker: Broker, connection: Connection, request: OffsetFetchRequest, version: int
) -> OffsetFetchResponse | asyncio.Future[OffsetFetchResponse]:
    """Offsets per group, topic and partition; -1 where nothing is committed."""
    if version >= 8:
        groups = [_group(connection, group, request.require_stable, version >= 10) for group in request.groups]
        response = OffsetFetchResponse(groups=groups)
        unsynced = [
            partition for group in request.groups for partition in broker.groups.commits.unsynced(group.group_id)
        ]
        return broker.flusher.answer(unsynced, response, _not_synced)
    wanted = None
    if request.topics is not None:
        wanted = [OffsetFetchRequestTopics(t.name, partition_indexes=t.partition_indexes) for t in request.topics]
    group = _group(connection, OffsetFetchRequestGroup(request.group_id, topics=wanted), request.require_stable, False)
    topics = [
        OffsetFetchResponseTopic(
            t.name,
            [
                OffsetFetchResponsePartition(
                    p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code
                )
                for p in t.partitions
            ],
        )
        for t in group.topics
    ]
    response = OffsetFetchResponse(0, topics, group.error_code)
    unsynced = broker.groups.commits.unsynced(request.group_id)
    return broker.flusher.answer(unsynced, response, _not_synced)


def _not_synced(response: OffsetFetchResponse, _: dict[Partition, str]) -> OffsetFetchResponse:
    """The answer when the disk refused: what was committed last is in doubt until the log is opened again."""
    groups = [OffsetFetchResponseGroup(g.group_id, [], errors.COORDINATOR_NOT_AVAILABLE) for g in response.groups]
    return OffsetFetchResponse(0, [], errors.COORDINATOR_NOT_AVAILABLE, groups)


def _group(
    connection: Connection, group: OffsetFetchRequestGroup, stable: bool, by_id: bool
) -> OffsetFetchResponseGroup:
    broker = connection.broker
    if not connection.may(Operation.DESCRIBE, Resource.GROUP, group.group_id):
        return OffsetFetchResponseGroup(group.group_id, [], errors.GROUP_AUTHORIZATION_FAILED)
    error = broker.groups.commits.check_fetch(group.group_id, group.member_id, group.member_epoch)
    if error:
        return OffsetFetchResponseGroup(group.group_id, [], error)
    offsets = broker.groups.commits.of(group.group_id)
    topics = []
    if group.topics is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in offsets.committed:
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = broker.log.topics.get(name)
            if by_id and topic is None:
                continue
            if not connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
                continue
            parts = [_partition(offsets, name, index, stable) for index in sorted(indexes)]
            topics.append(OffsetFetchResponseTopics(name, topic.id.bytes if topic else bytes(16), parts))
    else:
        for wanted in group.topics:
            name = wanted.name
            if by_id:
                topic = broker.topic_by_id(wanted.topic_id)
                if topic is None:
                    parts = [
                        OffsetFetchResponsePartitions(index, -1, -1, "", errors.UNKNOWN_TOPIC_ID)
                        for index in wanted.partition_indexes
                    ]
                    topics.append(OffsetFetchResponseTopics("", wanted.topic_id, parts))
                    continue
                name = topic.name
            if not connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
                parts = [
                    OffsetFetchResponsePartitions(index, -1, -1, "", errors.TOPIC_AUTHORIZATION_FAILED)
                    for index in wanted.partition_indexes
                ]
                topics.append(OffsetFetchResponseTopics(wanted.name, wanted.topic_id, parts))
                continue
            parts = [_partition(offsets, name, index, stable) for index in wanted.partition_indexes]
            topics.append(OffsetFetchResponseTopics(name, wanted.topic_id, parts))
    return OffsetFetchResponseGroup(group.group_id, topics)


def _partition(offsets: Offsets, name: str, index: int, stable: bool) -> OffsetFetchResponsePartitions:
    where = (name, index)
    if stable and offsets.unstable(where):
        return OffsetFetchResponsePartitions(index, -1, -1, "", errors.UNSTABLE_OFFSET_COMMIT)
    found = offsets.committed.get(where)
    if found is None:
        return OffsetFetchResponsePartitions(index, -1, -1, "")
    return OffsetFetchResponsePartitions(index, found.offset, found.leader_epoch, found.metadata)
