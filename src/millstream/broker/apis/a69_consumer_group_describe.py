"""ConsumerGroupDescribe (key 69), versions 0-1: epochs, members and assignments of groups of the new protocol."""

from typing import TYPE_CHECKING

from millstream.broker.apis.a15_describe_groups import GROUP_OPERATIONS, NOT_ASKED
from millstream.broker.groups.consumer import Partitions
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
    from millstream.broker.connection import Connection

CONSUMER_MEMBER = 1


def handle(
    broker: "Broker", connection: "Connection", request: ConsumerGroupDescribeRequest, version: int
) -> ConsumerGroupDescribeResponse:
    """One description per group."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return ConsumerGroupDescribeResponse(0, [_describe(broker, g, version, operations) for g in request.group_ids])


def _describe(broker: "Broker", group_id: str, version: int, operations: int) -> DescribedGroup:
    group = broker.groups.consumers.get(group_id)
    if group is None:
        text = (
            f"Group {group_id} is not a consumer group."
            if broker.groups.exists(group_id)
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
            _assignment(broker, m.assigned),
            _assignment(broker, group.target.get(m.id, {})),
            CONSUMER_MEMBER if version >= 1 else -1,
        )
        for m in group.members.values()
    ]
    return DescribedGroup(
        0, None, group_id, group.state, group.epoch, group.target_epoch, group.assignor, members, operations
    )


def _assignment(broker: "Broker", partitions: Partitions) -> Assignment:
    found = []
    for topic_id, indexes in partitions.items():
        topic = broker.topic_by_id(topic_id)
        if topic is not None:
            found.append(TopicPartitions(topic_id, topic.name, sorted(indexes)))
    return Assignment(found)
