"""SyncGroup (key 14), versions 0-5: the leader brings the assignments, everybody gets theirs.

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 has the instance id (KIP-345), 4 is
flexible, 5 compares the protocol's type and name (KIP-559).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.groups.classic_events import Sync
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: SyncGroupRequest, version: int
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    """Give the event to the group; its answer comes now or when the leader has synced."""
    if not request.group_id:
        return SyncGroupResponse(0, errors.INVALID_GROUP_ID)
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return SyncGroupResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(0, errors.INCONSISTENT_GROUP_PROTOCOL)
    token = broker.groups.sync(
        request.group_id,
        Sync(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {a.member_id: a.assignment for a in request.assignments},
        ),
    )
    return broker.answer(
        token,
        lambda synced: SyncGroupResponse(0, synced.error, synced.protocol_type, synced.protocol, synced.assignment),
    )
