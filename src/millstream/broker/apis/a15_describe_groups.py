"""DescribeGroups (key 15), versions 0-6: state and members of classic groups; an unknown group is Dead.

From version 6 an unknown group answers GROUP_ID_NOT_FOUND (KIP-1043).

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 tells the operations that are allowed
(KIP-430), 4 instance ids (KIP-345), 5 is flexible, 6 has texts of errors and GROUP_ID_NOT_FOUND (KIP-1043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.groups.classic_members import State
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
    from millstream.protocol.messages.share_group_describe import ShareGroupDescribeRequest

NOT_ASKED = -0x80000000


def handle(
    broker: Broker, connection: Connection, request: DescribeGroupsRequest, version: int
) -> DescribeGroupsResponse:
    """One description per group asked for."""
    return DescribeGroupsResponse(
        0,
        [
            _describe(broker, group_id, version, group_operations(connection, group_id, request))
            if connection.may(Operation.DESCRIBE, Resource.GROUP, group_id)
            else DescribedGroup(errors.GROUP_AUTHORIZATION_FAILED, None, group_id, "", "", "", [], NOT_ASKED)
            for group_id in request.groups
        ],
    )


def group_operations(
    connection: Connection,
    group_id: str,
    request: DescribeGroupsRequest | ConsumerGroupDescribeRequest | ShareGroupDescribeRequest,
) -> int:
    """What the client may do with a group, if it asked."""
    return connection.operations(Resource.GROUP, group_id) if request.include_authorized_operations else NOT_ASKED


def _describe(broker: Broker, group_id: str, version: int, operations: int) -> DescribedGroup:
    group = broker.groups.classic.find(group_id)
    if group is None and broker.groups.directory.offsets_only(group_id):
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
            m.assignment,
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
