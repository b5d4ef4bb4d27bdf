"""What groups of the new protocol store in `__consumer_offsets`, with Kafka's schemas."""

from __future__ import annotations

from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_members import STATIC_LEAVE_EPOCH, ClassicMember, Member, Partitions
from millstream.broker.internal_topics import Replayed, Write
from millstream.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

GROUP, MEMBER, TARGET_EPOCH, TARGET, CURRENT = 3, 5, 6, 7, 8
TYPES = frozenset({GROUP, MEMBER, TARGET_EPOCH, TARGET, CURRENT})


def writes(group: ConsumerGroup) -> list[Write]:
    """Records of the group's changes, in an order that can be replayed."""
    changes = group.changes
    out: list[Write] = []
    for member_id in sorted(changes.members):
        member = group.members.get(member_id)
        out.append((ConsumerGroupMemberMetadataKey(group.id, member_id), _member_value(member) if member else None, 0))
    if changes.group:
        out.append(
            (ConsumerGroupMetadataKey(group.id), ConsumerGroupMetadataValue(group.epoch, group.metadata_hash), 0)
        )
    for member_id in sorted(changes.target):
        target = group.target.get(member_id)
        value = None
        if target is not None:
            value = ConsumerGroupTargetAssignmentMemberValue([TopicPartition(t, sorted(i)) for t, i in target.items()])
        out.append((ConsumerGroupTargetAssignmentMemberKey(group.id, member_id), value, 0))
    if changes.target_epoch:
        epoch = ConsumerGroupTargetAssignmentMetadataValue(group.target_epoch)
        out.append((ConsumerGroupTargetAssignmentMetadataKey(group.id), epoch, 0))
    for member_id in sorted(changes.current):
        member = group.members.get(member_id)
        key = ConsumerGroupCurrentMemberAssignmentKey(group.id, member_id)
        out.append((key, _current_value(member) if member else None, 0))
    return out


def removal(group: ConsumerGroup) -> list[Write]:
    """The (empty) group is gone."""
    return [
        (ConsumerGroupTargetAssignmentMetadataKey(group.id), None, 0),
        (ConsumerGroupMetadataKey(group.id), None, 0),
    ]


def dissolution(group: ConsumerGroup) -> list[Write]:
    """The group is gone although it has members (ConsumerGroup.createGroupTombstoneRecords)."""
    known = set(group.members) | group.changes.members | group.changes.current | group.changes.target
    members = sorted(known)
    return [
        *((ConsumerGroupCurrentMemberAssignmentKey(group.id, m), None, 0) for m in members),
        *((ConsumerGroupTargetAssignmentMemberKey(group.id, m), None, 0) for m in members),
        (ConsumerGroupTargetAssignmentMetadataKey(group.id), None, 0),
        *((ConsumerGroupMemberMetadataKey(group.id, m), None, 0) for m in members),
        (ConsumerGroupMetadataKey(group.id), None, 0),
    ]


_KEYS = {
    GROUP: ConsumerGroupMetadataKey,
    MEMBER: ConsumerGroupMemberMetadataKey,
    TARGET_EPOCH: ConsumerGroupTargetAssignmentMetadataKey,
    TARGET: ConsumerGroupTargetAssignmentMemberKey,
    CURRENT: ConsumerGroupCurrentMemberAssignmentKey,
}


def group_of(record: Replayed) -> str:
    """The id of the group that a record is of."""
    group_id: str = _KEYS[record.type].decode(record.key, 0).group_id  # type: ignore[attr-defined]
    return group_id


def ends(record: Replayed) -> bool:
    """Whether a record says that its group is gone."""
    return record.type == GROUP and record.value is None


def read(record: Replayed, group: ConsumerGroup) -> None:
    """Apply a stored record to its group."""
    if record.type == GROUP:
        assert record.value is not None
        value = ConsumerGroupMetadataValue.decode(record.value, record.version)
        group.epoch, group.stored_hash = value.epoch, value.metadata_hash
    elif record.type == TARGET_EPOCH:
        if record.value is not None:
            epoch = ConsumerGroupTargetAssignmentMetadataValue.decode(record.value, record.version)
            group.target_epoch = epoch.assignment_epoch
    elif record.type == MEMBER:
        _read_member(record, group, ConsumerGroupMemberMetadataKey.decode(record.key, 0).member_id)
    elif record.type == TARGET:
        member_id = ConsumerGroupTargetAssignmentMemberKey.decode(record.key, 0).member_id
        if record.value is None:
            group.target.pop(member_id, None)
            return
        target = ConsumerGroupTargetAssignmentMemberValue.decode(record.value, record.version)
        group.target[member_id] = {p.topic_id: set(p.partitions) for p in target.topic_partitions}
    else:
        member_id = ConsumerGroupCurrentMemberAssignmentKey.decode(record.key, 0).member_id
        _read_current(record, group.members.get(member_id))


def _read_member(record: Replayed, group: ConsumerGroup, member_id: str) -> None:
    if record.value is None:
        group.members.pop(member_id, None)
        return
    value = ConsumerGroupMemberMetadataValue.decode(record.value, record.version)
    member = group.members.setdefault(member_id, Member(member_id))
    member.instance_id = value.instance_id
    member.rack_id = value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.topics = frozenset(value.subscribed_topic_names)
    member.regex = value.subscribed_topic_regex or None
    member.rebalance_seconds = value.rebalance_timeout_ms / 1000
    member.assignor = value.server_assignor
    member.classic = None
    if (classic := value.classic_member_metadata) is not None:
        protocols = [(p.name, p.metadata) for p in classic.supported_protocols]
        member.classic = ClassicMember(classic.session_timeout_ms / 1000, protocols)


def _read_current(record: Replayed, member: Member | None) -> None:
    if member is None or record.value is None:
        return
    value = ConsumerGroupCurrentMemberAssignmentValue.decode(record.value, record.version)
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = value.state
    member.away = value.member_epoch == STATIC_LEAVE_EPOCH
    member.assigned = {p.topic_id: set(p.partitions) for p in value.assigned_partitions}
    member.revoking = {p.topic_id: set(p.partitions) for p in value.partitions_pending_revocation}
    member.since = {
        (p.topic_id, index): epoch
        for p in (*value.assigned_partitions, *value.partitions_pending_revocation)
        for index, epoch in zip(
            p.partitions, p.assignment_epochs or [value.member_epoch] * len(p.partitions), strict=True
        )
    }


def _member_value(member: Member) -> ConsumerGroupMemberMetadataValue:
    classic = None
    if member.classic is not None:
        protocols = [ClassicProtocol(name, metadata) for name, metadata in member.classic.protocols]
        classic = ClassicMemberMetadata(int(member.classic.session_seconds * 1000), protocols)
    return ConsumerGroupMemberMetadataValue(
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        sorted(member.topics),
        member.regex,
        int(member.rebalance_seconds * 1000),
        member.assignor,
        classic,
    )


def _current_value(member: Member) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member.epoch,
        member.previous_epoch,
        member.state,
        _stored(member, member.assigned),
        _stored(member, member.revoking),
    )


def _stored(member: Member, partitions: Partitions) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic, sorted(indexes), [member.since.get((topic, i), member.epoch) for i in sorted(indexes)])
        for topic, indexes in partitions.items()
    ]
