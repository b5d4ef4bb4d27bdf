"""FindCoordinator (key 10), versions 0-6: this broker coordinates every group, transaction and share partition.

Version notes: 1 asks for transactions too, 2 throttles after the answer (KIP-219), 3 is flexible, 4 asks for several
keys (KIP-699), 5 knows TRANSACTION_ABORTABLE (KIP-890), 6 asks for share groups (KIP-932).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

GROUP, TRANSACTION, SHARE = 0, 1, 2
# group:topic id:partition; the group's id may hold colons.
_SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:\d{1,10}", re.DOTALL | re.ASCII)


def handle(
    broker: Broker, connection: Connection, request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse:
    """Our own address, for each key."""
    host, port = connection.listener.host, connection.listener.port
    keys = request.coordinator_keys if version >= 4 else [request.key]
    found = []
    for key in keys:
        try:
            _check(connection, request.key_type, key)
        except Refused as e:
            found.append(Coordinator(key, -1, "", -1, e.code, str(e)))
        else:
            found.append(Coordinator(key, broker.node_id, host, port, 0, None))
    if version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    [one] = found
    return FindCoordinatorResponse(0, one.error_code, one.error_message, one.node_id, one.host, one.port)


def _check(connection: Connection, kind: int, key: str) -> None:
    """Raises Refused."""
    if kind == GROUP:
        code, may = errors.GROUP_AUTHORIZATION_FAILED, connection.may(Operation.DESCRIBE, Resource.GROUP, key)
    elif kind == TRANSACTION:
        code = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        may = connection.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, key)
    elif kind == SHARE:
        code = errors.CLUSTER_AUTHORIZATION_FAILED
        may = connection.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER)
    else:
        raise Refused(errors.INVALID_REQUEST, "unknown key type")
    if not may:
        raise Refused(code, "not authorized")
    if kind == SHARE and not _SHARE_KEY.fullmatch(key):
        raise Refused(errors.INVALID_REQUEST, "expected group:topic id:partition")
