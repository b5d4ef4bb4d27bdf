"""What groups of the new protocol store in ``__consumer_offsets``, with Kafka's schemas."""

from collections.abc import Callable

from millstream.broker.groups.consumer import STATIC_LEAVE_EPOCH, ConsumerGroup, Member, Partitions
from millstream.broker.internal_topics import Replayed, Write
from millstream.protocol.messages.consumer_group_records import (
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


def writes(group: ConsumerGroup, now: int) -> list[Write]:
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


def read(record: Replayed, groups: dict[str, ConsumerGroup], make: Callable[[str], ConsumerGroup]) -> str:
    """Apply a stored record; the group's id."""
    if record.type == GROUP:
        group_id = ConsumerGroupMetadataKey.decode(record.key, 0).group_id
        if record.value is None:
            groups.pop(group_id, None)
            return group_id
        value = ConsumerGroupMetadataValue.decode(record.value, record.version)
        group = _group(groups, group_id, make)
        group.epoch, group.stored_hash = value.epoch, value.metadata_hash
    elif record.type == TARGET_EPOCH:
        group_id = ConsumerGroupTargetAssignmentMetadataKey.decode(record.key, 0).group_id
        if record.value is not None:
            epoch = ConsumerGroupTargetAssignmentMetadataValue.decode(record.value, record.version).assignment_epoch
            _group(groups, group_id, make).target_epoch = epoch
    elif record.type == MEMBER:
        key = ConsumerGroupMemberMetadataKey.decode(record.key, 0)
        group_id = key.group_id
        _read_member(record, groups, make, group_id, key.member_id)
    elif record.type == TARGET:
        target_key = ConsumerGroupTargetAssignmentMemberKey.decode(record.key, 0)
        group_id = target_key.group_id
        if record.value is not None:
            target = ConsumerGroupTargetAssignmentMemberValue.decode(record.value, record.version)
            assigned = {p.topic_id: set(p.partitions) for p in target.topic_partitions}
            _group(groups, group_id, make).target[target_key.member_id] = assigned
        elif group_id in groups:
            groups[group_id].target.pop(target_key.member_id, None)
    else:
        current_key = ConsumerGroupCurrentMemberAssignmentKey.decode(record.key, 0)
        group_id = current_key.group_id
        if record.value is not None and group_id in groups:
            _read_current(record, groups[group_id].members.get(current_key.member_id))
    return group_id


def _group(groups: dict[str, ConsumerGroup], group_id: str, make: Callable[[str], ConsumerGroup]) -> ConsumerGroup:
    group = groups.get(group_id)
    if group is None:
        group = groups[group_id] = make(group_id)
    return group


def _read_member(
    record: Replayed,
    groups: dict[str, ConsumerGroup],
    make: Callable[[str], ConsumerGroup],
    group_id: str,
    member_id: str,
) -> None:
    if record.value is None:
        if group_id in groups:
            groups[group_id].members.pop(member_id, None)
        return
    value = ConsumerGroupMemberMetadataValue.decode(record.value, record.version)
    group = _group(groups, group_id, make)
    member = group.members.setdefault(member_id, Member(member_id))
    member.instance_id = value.instance_id
    member.rack_id = value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.topics = frozenset(value.subscribed_topic_names)
    member.regex = value.subscribed_topic_regex or None
    member.rebalance_seconds = value.rebalance_timeout_ms / 1000
    member.assignor = value.server_assignor


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
    return ConsumerGroupMemberMetadataValue(
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        sorted(member.topics),
        member.regex,
        int(member.rebalance_seconds * 1000),
        member.assignor,
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
