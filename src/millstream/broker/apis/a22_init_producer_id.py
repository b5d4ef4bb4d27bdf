"""InitProducerId (key 22), versions 0-5: a producer id and epoch, for idempotent and transactional producers.

Without a transactional id: always a new id, epoch 0 (ids are durable and never repeat).
With one: the coordinator fences earlier producers of it and ends their transaction first. While any topic is `commit`
the answer waits until the raised epoch is on disk.
Gaps: version 6 (two-phase commit, KIP-939).

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible, 3 asks for a new epoch of the same id (KIP-360), 4
knows PRODUCER_FENCED (KIP-588), 5 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: InitProducerIdRequest, version: int
) -> InitProducerIdResponse | asyncio.Future[InitProducerIdResponse]:
    """An id and an epoch."""
    if request.transactional_id is not None:
        if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
            return InitProducerIdResponse(0, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        return broker.transactions.init(request, version)
    if not (
        connection.may(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER)
        or connection.may_somewhere(Operation.WRITE, Resource.TOPIC)
    ):
        return InitProducerIdResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED, -1, -1)
    return InitProducerIdResponse(0, 0, broker.log.next_producer_id(), 0)
