"""What groups store: classic groups and offsets as records of `__consumer_offsets`, with Kafka's schemas."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_members import Member
from millstream.broker.groups.offsets import Committed, Where
from millstream.broker.internal_topics import Replayed, Write
from millstream.protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from millstream.protocol.messages.offset_records import OffsetCommitKey, OffsetCommitValue

OFFSET_COMMIT_LEGACY, OFFSET_COMMIT, GROUP_METADATA = 0, 1, 2
OFFSETS = frozenset({OFFSET_COMMIT_LEGACY, OFFSET_COMMIT})
# Kafka 3.x and 4.x read and write these.
OFFSET_VERSION = 3
GROUP_VERSION = 3


def offset_write(group: str, where: Where, what: Committed | None) -> Write:
    """A committed offset, or its removal."""
    key = OffsetCommitKey(group, where[0], where[1])
    if what is None:
        return key, None, 0
    if what.expires >= 0:  # only version 1 has an expiry of its own
        return key, OffsetCommitValue(what.offset, -1, what.metadata, what.at, what.expires), 1
    return key, OffsetCommitValue(what.offset, what.leader_epoch, what.metadata, what.at), OFFSET_VERSION


def read_offset(record: Replayed) -> tuple[str, Where, Committed | None]:
    """The opposite of offset_write: the group, and what it committed where."""
    key = OffsetCommitKey.decode(record.key, 0)
    where = (key.topic, key.partition)
    if record.value is None:
        return key.group, where, None
    value = OffsetCommitValue.decode(record.value, record.version)
    committed = Committed(
        value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp
    )
    return key.group, where, committed


def group_write(group: ClassicGroup, now: int) -> Write:
    """The group's generation and members."""
    members = [
        MemberMetadata(
            m.id,
            m.instance_id,
            m.client_id,
            m.client_host,
            int(m.rebalance_seconds * 1000),
            int(m.session_seconds * 1000),
            m.metadata(group.protocol),
            m.assignment,
        )
        for m in group.members.values()
    ]
    value = GroupMetadataValue(group.protocol_type or "", group.generation, group.protocol, group.leader, now, members)
    return GroupMetadataKey(group.id), value, GROUP_VERSION


def group_removal(group_id: str) -> Write:
    """The group is gone."""
    return GroupMetadataKey(group_id), None, 0


def read_group(record: Replayed, make: Callable[[str], ClassicGroup], now: float) -> tuple[str, ClassicGroup | None]:
    """The opposite of group_write. Members get a whole session from `now` on to be heard of again."""
    group_id = GroupMetadataKey.decode(record.key, 0).group
    if record.value is None:
        return group_id, None
    value = GroupMetadataValue.decode(record.value, record.version)
    group = make(group_id)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    group.leader = value.leader
    for m in value.members:
        rebalance = m.rebalance_timeout if m.rebalance_timeout >= 0 else m.session_timeout
        member = Member(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout / 1000,
            rebalance / 1000,
            [(value.protocol or "", m.subscription)],
            m.assignment,
            deadline=now + m.session_timeout / 1000,
        )
        group.members[member.id] = member
        if member.instance_id is not None:
            group.static[member.instance_id] = member.id
    return group_id, group
