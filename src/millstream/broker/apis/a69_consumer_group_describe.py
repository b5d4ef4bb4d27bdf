"""ConsumerGroupDescribe (key 69), versions 0-1: epochs, members and assignments of groups of the new protocol.

Version notes: 1 tells the type of each member (KIP-1099).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a15_describe_groups import group_operations
from millstream.broker.groups.consumer_members import Partitions
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def handle(
    broker: Broker, connection: Connection, request: ConsumerGroupDescribeRequest, version: int
) -> ConsumerGroupDescribeResponse:
    """One description per group."""
    described = []
    for group_id in request.group_ids:
        if not connection.may(Operation.DESCRIBE, Resource.GROUP, group_id):
            described.append(DescribedGroup(errors.GROUP_AUTHORIZATION_FAILED, None, group_id))
            continue
        group = _describe(broker, group_id, version, group_operations(connection, group_id, request))
        seen = {
            t.topic_name for m in group.members for a in (m.assignment, m.target_assignment) for t in a.topic_partitions
        }
        seen |= {name for m in group.members for name in m.subscribed_topic_names}
        if not all(connection.may(Operation.DESCRIBE, Resource.TOPIC, name) for name in seen):
            text = "The group has described topic(s) that the client is not authorized to describe."
            group = DescribedGroup(errors.TOPIC_AUTHORIZATION_FAILED, text, group_id)
        described.append(group)
    return ConsumerGroupDescribeResponse(0, described)


def _describe(broker: Broker, group_id: str, version: int, operations: int) -> DescribedGroup:
    group = broker.groups.consumer.find(group_id)
    if group is None:
        text = (
            f"Group {group_id} is not a consumer group."
            if broker.groups.directory.exists(group_id)
            else f"Group {group_id} not found."
        )
        return DescribedGroup(errors.GROUP_ID_NOT_FOUND if group_id else errors.INVALID_GROUP_ID, text, group_id)
    members = [
        Member(
            m.id,
            m.instance_id,
            m.rack_id,
            m.epoch,
            m.client_id,
            m.client_host,
            sorted(m.topics),
            m.regex,
            _assignment(broker, m.held),
            _assignment(broker, group.target.get(m.id, {})),
            (CONSUMER_MEMBER if m.classic is None else CLASSIC_MEMBER) if version >= 1 else -1,
        )
        for m in group.members.values()
    ]
    return DescribedGroup(
        0, None, group_id, group.state, group.epoch, group.target_epoch, group.assignor, members, operations
    )


def _assignment(broker: Broker, partitions: Partitions) -> Assignment:
    found = []
    for topic_id, indexes in partitions.items():
        topic = broker.topic_by_id(topic_id)
        if topic is not None:
            found.append(TopicPartitions(topic_id, topic.name, sorted(indexes)))
    return Assignment(found)
