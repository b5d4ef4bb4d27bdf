"""FindCoordinator (key 10), versions 0-6: this broker coordinates every group and transaction.

Share coordinators (key type 2) are refused with INVALID_REQUEST: share groups are not served yet.

Version notes: 1 asks for transactions too, 2 throttles after the answer (KIP-219), 3 is flexible, 4 asks for several
keys (KIP-699), 5 knows TRANSACTION_ABORTABLE (KIP-890), 6 asks for share groups (KIP-932).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

GROUP, TRANSACTION = 0, 1


def handle(
    broker: Broker, connection: Connection, request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse:
    """Our own address, for each key."""
    host, port = connection.listener.host, connection.listener.port
    known = request.key_type in (GROUP, TRANSACTION)
    resource = Resource.GROUP if request.key_type == GROUP else Resource.TRANSACTIONAL_ID
    denied = (
        errors.GROUP_AUTHORIZATION_FAILED if request.key_type == GROUP else errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    if version < 4:
        if not known:
            return FindCoordinatorResponse(0, errors.INVALID_REQUEST, "unknown key type", -1, "", -1)
        if not connection.may(Operation.DESCRIBE, resource, request.key):
            return FindCoordinatorResponse(0, denied, "not authorized", -1, "", -1)
        return FindCoordinatorResponse(0, 0, None, broker.node_id, host, port)
    found = [
        Coordinator(key, broker.node_id, host, port, 0, None)
        if known and connection.may(Operation.DESCRIBE, resource, key)
        else Coordinator(key, -1, "", -1, denied, "not authorized")
        if known
        else Coordinator(key, -1, "", -1, errors.INVALID_REQUEST, "unknown key type")
        for key in request.coordinator_keys
    ]
    return FindCoordinatorResponse(coordinators=found)
