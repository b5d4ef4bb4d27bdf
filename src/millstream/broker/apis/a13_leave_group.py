"""LeaveGroup (key 13), versions 0-5: members leave; from version 3 several at once, static ones by instance id.

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 names several members, static ones too
(KIP-345), 4 is flexible, 5 has a reason (KIP-800).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: LeaveGroupRequest, version: int
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
    """Remove the members; a rebalance of the others follows."""
    if not request.group_id:
        return LeaveGroupResponse(0, errors.INVALID_GROUP_ID)
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return LeaveGroupResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    members = request.members if version >= 3 else [MemberIdentity(request.member_id)]
    codes = broker.groups.leave(request.group_id, [(m.member_id, m.group_instance_id) for m in members])
    results = [MemberResponse(m.member_id, m.group_instance_id, e) for m, e in zip(members, codes, strict=True)]
    response = LeaveGroupResponse(0, results[0].error_code) if version < 3 else LeaveGroupResponse(0, 0, results)
    unsynced = broker.groups.directory.unanswered(request.group_id)
    return broker.flusher.answer(unsynced, response, lambda *_: LeaveGroupResponse(0, errors.COORDINATOR_NOT_AVAILABLE))
