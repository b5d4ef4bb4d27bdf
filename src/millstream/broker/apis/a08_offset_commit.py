"""OffsetCommit (key 8), versions 2-10: store a group's offsets.

From members of a classic or consumer group, or from outside while the group is empty (generation -1). Stored in
`__consumer_offsets` before the answer, and synced if one of the topics is `commit`. Version 10 names topics by id.

Version notes: 3 tells throttle times, 4 throttles after the answer (KIP-219), 5 leaves the retention to the broker
(KIP-211), 6 has the leader epoch (KIP-320), 7 the instance id (KIP-345), 8 is flexible, 9 is for the new group protocol
too (KIP-848), 10 names topics by id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from millstream.broker.groups.group import Committer
from millstream.broker.groups.offsets import Committed, Where
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition, Topic
    from millstream.protocol.messages.txn_offset_commit import TxnOffsetCommitRequestTopic, TxnOffsetCommitResponse

Known = tuple["Topic", OffsetCommitRequestPartition, OffsetCommitResponsePartition]
BY_ID = 10
R = TypeVar("R", OffsetCommitResponse, "TxnOffsetCommitResponse")


def named_topic(
    connection: Connection, wanted: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic, *, by_id: bool
) -> tuple[Topic | None, int]:
    """Return the topic for which offsets are to be committed, and the error of all its partitions."""
    broker = connection.broker
    topic = broker.topic_by_id(wanted.topic_id) if by_id else broker.log.topics.get(wanted.name)
    name = topic.name if topic is not None else wanted.name
    if name and not connection.may(Operation.READ, Resource.TOPIC, name):
        return topic, errors.TOPIC_AUTHORIZATION_FAILED
    if topic is None:
        return None, errors.UNKNOWN_TOPIC_ID if by_id else errors.UNKNOWN_TOPIC_OR_PARTITION
    return topic, errors.NONE


def not_synced(response: R, _: dict[Partition, str]) -> R:
    """The answer to a commit when the disk refused: nothing counts as committed, in a transaction or not."""
    for topic in response.topics:
        for part in topic.partitions:
            part.error_code = part.error_code or errors.COORDINATOR_NOT_AVAILABLE
    return response


def handle(
    broker: Broker, connection: Connection, request: OffsetCommitRequest, version: int
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
    """Check the member, store, answer per partition."""
    forbidden = 0
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        forbidden = errors.GROUP_AUTHORIZATION_FAILED
    known: list[Known] = []
    topics = []
    for wanted in request.topics:
        topic, error = named_topic(connection, wanted, by_id=version >= BY_ID)
        parts = []
        for part in wanted.partitions:
            result = OffsetCommitResponsePartition(part.partition_index, forbidden or error)
            parts.append(result)
            if topic is None or result.error_code:
                continue
            if not 0 <= part.partition_index < len(topic.partitions):
                result.error_code = errors.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known.append((topic, part, result))
        topics.append(OffsetCommitResponseTopic(wanted.name, wanted.topic_id, parts))
    response = OffsetCommitResponse(0, topics)
    if known:
        _commit(broker, request, version, known)
        return broker.flusher.answer(broker.groups.commits.unsynced(request.group_id), response, not_synced)
    return response


def _commit(broker: Broker, request: OffsetCommitRequest, version: int, known: list[Known]) -> None:
    """Store what may be stored, and put the others' errors into their results.

    A member's earlier epoch that is too early for one partition refuses all (OffsetMetadataManager.commitOffset).
    """
    by = Committer(
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        [(topic.id.bytes, part.partition_index) for topic, part, _ in known],
        version,
    )
    error = broker.groups.commits.check(request.group_id, by)
    longest = broker.settings.integer("offset.metadata.max.bytes")
    now = broker.now_ms()
    expires = now + request.retention_time_ms if version <= 4 and request.retention_time_ms >= 0 else -1
    commits: list[tuple[Where, Committed]] = []
    for topic, part, result in known:
        metadata = part.committed_metadata or ""
        if error:
            result.error_code = error
        elif len(metadata) > longest:
            result.error_code = errors.OFFSET_METADATA_TOO_LARGE
        else:
            what = Committed(part.committed_offset, part.committed_leader_epoch, metadata, now, expires)
            commits.append(((topic.name, part.partition_index), what))
    if commits:
        error = broker.groups.commits.commit(request.group_id, commits)
        for _, _, result in known:
            result.error_code = result.error_code or error
