"""JoinGroup (key 11), versions 0-9: become or stay a member of a classic group; answered when the rebalance is done.

From version 4 a new member first gets its id (KIP-394); static members (KIP-345) from 5; a returning static leader skips
the assignment from 9 (KIP-814). In a group of the new protocol it is answered at once (`groups/consumer_classic.py`).

Version notes: 1 has the rebalance timeout, 2 tells throttle times, 3 throttles after the answer (KIP-219), 4 gives a
new member its id first (KIP-394), 5 has the instance id (KIP-345), 6 is flexible, 7 tells the protocol type (KIP-559),
8 has a reason (KIP-800), 9 may skip the assignment (KIP-814).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.groups.classic_events import Join, Joined
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: JoinGroupRequest, version: int
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    """Give the event to the group; its answer comes now or later."""
    if not request.group_id:
        return _refused(errors.INVALID_GROUP_ID, request, version)
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return _refused(errors.GROUP_AUTHORIZATION_FAILED, request, version)
    low = broker.settings.integer("group.min.session.timeout.ms")
    high = broker.settings.integer("group.max.session.timeout.ms")
    if not low <= request.session_timeout_ms <= high:
        return _refused(errors.INVALID_SESSION_TIMEOUT, request, version)
    rebalance = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
    join = Join(
        request.member_id,
        request.group_instance_id,
        connection.client_id,
        connection.host,
        request.session_timeout_ms / 1000,
        rebalance / 1000,
        request.protocol_type,
        [(p.name, p.metadata) for p in request.protocols],
        id_first=version >= 4,
        may_skip=version >= 9,
    )
    token = broker.groups.join(request.group_id, join)
    return broker.answer(token, lambda joined: _response(joined, version))


def _refused(error: int, request: JoinGroupRequest, version: int) -> JoinGroupResponse:
    return _response(Joined(None, error, request.member_id), version)


def _response(joined: Joined, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        0,
        joined.error,
        joined.generation,
        joined.protocol_type,
        joined.protocol if joined.protocol is not None or version >= 7 else "",
        joined.leader,
        joined.skip if version >= 9 else False,
        joined.member_id,
        [JoinGroupResponseMember(*member) for member in joined.members],
    )
