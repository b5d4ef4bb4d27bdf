"""ListGroups (key 16), versions 0-5: every group with state and type; filters by state (4) and type (5).

Version notes: 1 tells throttle times, 2 throttles after the answer (KIP-219), 3 is flexible, 4 filters by state
(KIP-518), 5 by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(broker: Broker, connection: Connection, request: ListGroupsRequest, version: int) -> ListGroupsResponse:
    """The groups that the filters let through."""
    states = {s.lower() for s in request.states_filter}
    types = {t.lower() for t in request.types_filter}
    all_of_them = connection.may(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER)
    listed = [
        ListedGroup(group_id, protocol_type, state, kind)
        for group_id, protocol_type, state, kind in broker.groups.listing()
        if (not states or state.lower() in states)
        and (not types or kind.lower() in types)
        and (all_of_them or connection.may(Operation.DESCRIBE, Resource.GROUP, group_id))
    ]
    if version < 5:
        for group in listed:
            group.group_type = ""
    if version < 4:
        for group in listed:
            group.group_state = ""
    return ListGroupsResponse(0, 0, listed)
