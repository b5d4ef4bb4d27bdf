"""DescribeGroups (key 15), versions 0-6: state and members of classic groups; an unknown group is Dead.

From version 6 an unknown group answers GROUP_ID_NOT_FOUND (KIP-1043).
"""

from typing import TYPE_CHECKING

from millstream.broker.groups.classic import State
from millstream.protocol import errors
from millstream.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection

NOT_ASKED = -0x80000000
# AclOperation bits: read, delete, describe.
GROUP_OPERATIONS = 0b1_0100_1000


def handle(
    broker: "Broker", connection: "Connection", request: DescribeGroupsRequest, version: int
) -> DescribeGroupsResponse:
    """One description per group asked for."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    return DescribeGroupsResponse(0, [_describe(broker, group_id, version, operations) for group_id in request.groups])


def _describe(broker: "Broker", group_id: str, version: int, operations: int) -> DescribedGroup:
    group = broker.groups.classic(group_id)
    if group is None and broker.groups.offsets_only(group_id):
        return DescribedGroup(0, None, group_id, State.EMPTY, "", "", [], operations)
    if group is None:
        error = errors.GROUP_ID_NOT_FOUND if version >= 6 else 0
        text = f"Group {group_id} is not a classic group." if error else None
        return DescribedGroup(error, text, group_id, State.DEAD, "", "", [], operations)
    stable = group.state is State.STABLE
    members = [
        DescribedGroupMember(
            m.id,
            m.instance_id,
            m.client_id,
            m.client_host,
            m.metadata(group.protocol) if stable else b"",
            m.assignment if stable else b"",
        )
        for m in group.members.values()
    ]
    return DescribedGroup(
        0,
        None,
        group_id,
        group.state,
        group.protocol_type or "",
        (group.protocol or "") if stable else "",
        members,
        operations,
    )
