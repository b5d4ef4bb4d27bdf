"""DeleteGroups (key 42), versions 0-3: remove groups without members, with their offsets."""

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: DeleteGroupsRequest, version: int
) -> DeleteGroupsResponse:
    """One result per group."""
    return DeleteGroupsResponse(
        0,
        [
            DeletableGroupResult(
                group_id,
                broker.groups.delete(group_id)
                if connection.may(Operation.DELETE, Resource.GROUP, group_id)
                else errors.GROUP_AUTHORIZATION_FAILED,
            )
            for group_id in request.groups_names
        ],
    )
