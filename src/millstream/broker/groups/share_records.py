"""What share groups store in `__consumer_offsets`, with Kafka's schemas; what their partitions store is in `share/records.py`."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.groups.share import ShareGroup, ShareMember
from millstream.broker.internal_topics import Replayed, Write
from millstream.protocol.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
    TopicPartitionsInfo,
)

MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STARTED = (
    ShareGroupMemberMetadataKey.API_KEY,
    ShareGroupMetadataKey.API_KEY,
    ShareGroupTargetAssignmentMetadataKey.API_KEY,
    ShareGroupTargetAssignmentMemberKey.API_KEY,
    ShareGroupCurrentMemberAssignmentKey.API_KEY,
    ShareGroupStatePartitionMetadataKey.API_KEY,
)
TYPES = frozenset({MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STARTED})


def writes(group: ShareGroup) -> list[Write]:
    """Records of the group's changes, in an order that can be replayed."""
    changes = group.changes
    out: list[Write] = []
    for member_id in sorted(changes.members):
        member = group.members.get(member_id)
        out.append((ShareGroupMemberMetadataKey(group.id, member_id), _member_value(member) if member else None, 0))
    if changes.group:
        out.append((ShareGroupMetadataKey(group.id), ShareGroupMetadataValue(group.epoch, group.metadata_hash), 0))
    for member_id in sorted(changes.target):
        target = group.target.get(member_id)
        value = None
        if target is not None:
            value = ShareGroupTargetAssignmentMemberValue([TopicPartition(t, sorted(i)) for t, i in target.items()])
        out.append((ShareGroupTargetAssignmentMemberKey(group.id, member_id), value, 0))
    if changes.target_epoch:
        epoch = ShareGroupTargetAssignmentMetadataValue(group.target_epoch)
        out.append((ShareGroupTargetAssignmentMetadataKey(group.id), epoch, 0))
    for member_id in sorted(changes.current):
        member = group.members.get(member_id)
        key = ShareGroupCurrentMemberAssignmentKey(group.id, member_id)
        out.append((key, _current_value(member) if member else None, 0))
    return out


def started(group: ShareGroup, name: Callable[[bytes], str | None]) -> Write:
    """Which partitions' states have been begun; `name` is of a topic's id, None if it is gone."""
    topics = [
        TopicPartitionsInfo(topic_id, known, sorted(partitions))
        for topic_id, partitions in group.initialized.items()
        if (known := name(topic_id)) is not None
    ]
    return ShareGroupStatePartitionMetadataKey(group.id), ShareGroupStatePartitionMetadataValue([], topics, []), 0


def group_of(record: Replayed) -> str:
    """The group that a record is of: the first field of every key."""
    return ShareGroupMetadataKey.decode_from(record.key, 0)[0].group_id


def removal(group: ShareGroup) -> list[Write]:
    """The (empty) group is gone."""
    return [
        (ShareGroupStatePartitionMetadataKey(group.id), None, 0),
        (ShareGroupTargetAssignmentMetadataKey(group.id), None, 0),
        (ShareGroupMetadataKey(group.id), None, 0),
    ]


def read(record: Replayed, group: ShareGroup) -> None:
    """Apply a stored record to its group; the one that says that the group is gone is the caller's."""
    if record.type == GROUP:
        assert record.value is not None
        value = ShareGroupMetadataValue.decode(record.value, record.version)
        group.epoch, group.stored_hash = value.epoch, value.metadata_hash
    elif record.type == STARTED:
        topics = []
        if record.value is not None:
            topics = ShareGroupStatePartitionMetadataValue.decode(record.value, record.version).initialized_topics
        group.initialized = {topic.topic_id: set(topic.partitions) for topic in topics}
    elif record.type == TARGET_EPOCH:
        if record.value is not None:
            epoch = ShareGroupTargetAssignmentMetadataValue.decode(record.value, record.version)
            group.target_epoch = epoch.assignment_epoch
    elif record.type == MEMBER:
        _read_member(record, group, ShareGroupMemberMetadataKey.decode(record.key, 0).member_id)
    elif record.type == TARGET:
        member_id = ShareGroupTargetAssignmentMemberKey.decode(record.key, 0).member_id
        if record.value is None:
            group.target.pop(member_id, None)
            return
        target = ShareGroupTargetAssignmentMemberValue.decode(record.value, record.version)
        group.target[member_id] = {p.topic_id: set(p.partitions) for p in target.topic_partitions}
    else:
        member_id = ShareGroupCurrentMemberAssignmentKey.decode(record.key, 0).member_id
        member = group.members.get(member_id)
        if member is None or record.value is None:
            return
        current = ShareGroupCurrentMemberAssignmentValue.decode(record.value, record.version)
        member.epoch, member.previous_epoch = current.member_epoch, current.previous_member_epoch
        member.assigned = {p.topic_id: set(p.partitions) for p in current.assigned_partitions}


def _read_member(record: Replayed, group: ShareGroup, member_id: str) -> None:
    if record.value is None:
        group.members.pop(member_id, None)
        return
    value = ShareGroupMemberMetadataValue.decode(record.value, record.version)
    member = group.members.setdefault(member_id, ShareMember(member_id))
    member.rack_id = value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.topics = frozenset(value.subscribed_topic_names)


def _member_value(member: ShareMember) -> ShareGroupMemberMetadataValue:
    return ShareGroupMemberMetadataValue(member.rack_id, member.client_id, member.client_host, sorted(member.topics))


def _current_value(member: ShareMember) -> ShareGroupCurrentMemberAssignmentValue:
    return ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=0,
        assigned_partitions=[TopicPartitions(topic, sorted(indexes)) for topic, indexes in member.assigned.items()],
    )
