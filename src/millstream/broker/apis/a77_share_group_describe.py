"""ShareGroupDescribe (key 77), version 1: epochs, members and assignments of share groups (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a15_describe_groups import group_operations
from millstream.broker.groups.consumer_members import Partitions
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: ShareGroupDescribeRequest, version: int
) -> ShareGroupDescribeResponse:
    """One description per group."""
    described = []
    for group_id in request.group_ids:
        if not connection.may(Operation.DESCRIBE, Resource.GROUP, group_id):
            described.append(DescribedGroup(errors.GROUP_AUTHORIZATION_FAILED, None, group_id))
            continue
        group = _describe(broker, group_id, group_operations(connection, group_id, request))
        seen = {name for m in group.members for name in m.subscribed_topic_names}
        seen |= {t.topic_name for m in group.members for t in m.assignment.topic_partitions}
        if not all(connection.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in seen):
            text = "The group has described topic(s) that the client is not authorized to describe."
            group = DescribedGroup(errors.TOPIC_AUTHORIZATION_FAILED, text, group_id)
        described.append(group)
    return ShareGroupDescribeResponse(0, described)


def _describe(broker: Broker, group_id: str, operations: int) -> DescribedGroup:
    group = broker.groups.share.find(group_id)
    if group is None:
        there = broker.groups.directory.exists(group_id)
        text = f"Group {group_id} is not a share group." if there else f"Group {group_id} not found."
        return DescribedGroup(errors.GROUP_ID_NOT_FOUND if group_id else errors.INVALID_GROUP_ID, text, group_id)
    members = [
        Member(
            m.id,
            m.rack_id,
            m.epoch,
            m.client_id,
            m.client_host,
            sorted(m.topics),
            _assignment(broker, m.assigned),
        )
        for m in group.members.values()
    ]
    return DescribedGroup(
        0, None, group_id, group.state, group.epoch, group.target_epoch, "simple", members, operations
    )


def _assignment(broker: Broker, partitions: Partitions) -> Assignment:
    found = []
    for topic_id, indexes in partitions.items():
        topic = broker.topic_by_id(topic_id)
        if topic is not None:
            found.append(TopicPartitions(topic_id, topic.name, sorted(indexes)))
    return Assignment(found)
