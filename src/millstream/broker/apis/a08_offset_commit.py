"""OffsetCommit (key 8), versions 2-10: store a group's offsets.

From members of a classic or consumer group, or from outside while the group is empty (generation -1). Stored in
``__consumer_offsets`` before the answer. Version 10 names topics by id.
"""

from typing import TYPE_CHECKING

from millstream.broker.groups.offsets import Committed, Where
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: OffsetCommitRequest, version: int
) -> OffsetCommitResponse:
    """Check the member, store, answer per partition."""
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        error = forbidden = errors.GROUP_AUTHORIZATION_FAILED
    else:
        forbidden = 0
        error = broker.groups.check_commit(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
    now = broker.now_ms()
    longest = broker.settings.integer("offset.metadata.max.bytes")
    expires = now + request.retention_time_ms if version <= 4 and request.retention_time_ms >= 0 else -1
    commits: list[tuple[Where, Committed]] = []
    topics = []
    for wanted in request.topics:
        topic = broker.topic_by_id(wanted.topic_id) if version >= 10 else broker.log.topics.get(wanted.name)
        missing = errors.UNKNOWN_TOPIC_ID if version >= 10 else errors.UNKNOWN_TOPIC_OR_PARTITION
        name = topic.name if topic is not None else wanted.name
        denied = bool(name) and not connection.may(Operation.READ, Resource.TOPIC, name)
        parts = []
        for part in wanted.partitions:
            code = error
            if forbidden:
                pass
            elif denied:
                code = errors.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= part.partition_index < len(topic.partitions):
                code = missing
            elif not error and (
                stale := broker.groups.check_partition(
                    request.group_id,
                    request.member_id,
                    request.generation_id_or_member_epoch,
                    topic.id.bytes,
                    part.partition_index,
                )
            ):
                code = stale
            elif not error and len(part.committed_metadata or "") > longest:
                code = errors.OFFSET_METADATA_TOO_LARGE
            elif not error:
                what = Committed(
                    part.committed_offset, part.committed_leader_epoch, part.committed_metadata or "", now, expires
                )
                commits.append(((topic.name, part.partition_index), what))
            parts.append(OffsetCommitResponsePartition(part.partition_index, code))
        topics.append(OffsetCommitResponseTopic(wanted.name, wanted.topic_id, parts))
    if commits:
        error = broker.groups.commit(request.group_id, commits)
        if error:
            for answer in topics:
                for result in answer.partitions:
                    result.error_code = result.error_code or error
    return OffsetCommitResponse(0, topics)
