"""FindCoordinator (key 10), versions 0-6: this broker coordinates every group and transaction.

Share coordinators (key type 2) are refused with INVALID_REQUEST: share groups are not served yet.
"""

from typing import TYPE_CHECKING

from millstream.protocol import errors
from millstream.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection

GROUP, TRANSACTION = 0, 1


def handle(
    broker: "Broker", connection: "Connection", request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse:
    """Our own address, for each key."""
    known = request.key_type in (GROUP, TRANSACTION)
    if version < 4:
        if not known:
            return FindCoordinatorResponse(0, errors.INVALID_REQUEST, "unknown key type", -1, "", -1)
        return FindCoordinatorResponse(0, 0, None, broker.node_id, broker.host, broker.port)
    found = [
        Coordinator(key, broker.node_id, broker.host, broker.port, 0, None)
        if known
        else Coordinator(key, -1, "", -1, errors.INVALID_REQUEST, "unknown key type")
        for key in request.coordinator_keys
    ]
    return FindCoordinatorResponse(coordinators=found)
