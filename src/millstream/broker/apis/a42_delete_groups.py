"""DeleteGroups (key 42), versions 0-3: remove groups without members, with their offsets.

While any topic is `commit` the answer waits until the removal is on disk.

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible, 3 has texts of errors.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition


def handle(
    broker: Broker, connection: Connection, request: DeleteGroupsRequest, version: int
) -> DeleteGroupsResponse | asyncio.Future[DeleteGroupsResponse]:
    """One result per group."""
    response = DeleteGroupsResponse(
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
    unsynced = broker.groups.commits.removed(result.group_id for result in response.results if not result.error_code)
    return broker.flusher.answer(unsynced, response, _not_synced)


def _not_synced(response: DeleteGroupsResponse, _: dict[Partition, str]) -> DeleteGroupsResponse:
    for result in response.results:
        result.error_code = result.error_code or errors.COORDINATOR_NOT_AVAILABLE
    return response
