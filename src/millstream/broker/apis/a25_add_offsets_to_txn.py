"""AddOffsetsToTxn (key 25), versions 0-4: a transaction will commit offsets of a group.

The answer waits for the disk when the group or the transaction has to do with `commit` topics. Of which topics offsets will be
committed is not known yet: TxnOffsetCommit sees to the rest.

Version notes: 1 throttles after the answer (KIP-219), 2 knows PRODUCER_FENCED (KIP-588), 3 is flexible, 4 knows
TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: AddOffsetsToTxnRequest, version: int
) -> AddOffsetsToTxnResponse | asyncio.Future[AddOffsetsToTxnResponse]:
    """Add the group's partition of the offsets topic."""
    if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return AddOffsetsToTxnResponse(0, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return AddOffsetsToTxnResponse(0, errors.INVALID_GROUP_ID)
    error = broker.transactions.add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        {broker.groups.commits.place(request.group_id)},
    )
    response = AddOffsetsToTxnResponse(0, broker.transactions.epoch_error(error, version, 2))
    unsynced = [] if error else broker.transactions.unsynced_group(request.transactional_id, request.group_id)
    return broker.flusher.answer(
        unsynced, response, lambda *_: AddOffsetsToTxnResponse(0, errors.COORDINATOR_NOT_AVAILABLE)
    )
