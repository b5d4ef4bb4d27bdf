"""Heartbeat (key 12), versions 0-4: a member lives; told when a rebalance has begun.

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 has the instance id (KIP-345), 4 is
flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: HeartbeatRequest, version: int) -> HeartbeatResponse:
    """The group's verdict."""
    if not request.group_id:
        return HeartbeatResponse(0, errors.INVALID_GROUP_ID)
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return HeartbeatResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    error = broker.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(0, error)
