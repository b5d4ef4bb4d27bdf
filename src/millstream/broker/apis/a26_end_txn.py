"""EndTxn (key 26), versions 0-5: commit or abort. From version 5 each end raises the producer's epoch (KIP-890).

Answered when the markers are written; for a transaction that touches a `commit` topic when they are synced.

Version notes: 1 throttles after the answer (KIP-219), 2 knows PRODUCER_FENCED (KIP-588), 3 is flexible, 4 knows
TRANSACTION_ABORTABLE (KIP-890), 5 answers with the raised epoch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.broker.transactions.coordinator import END_RAISES, Ended
from millstream.protocol import errors
from millstream.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: EndTxnRequest, version: int
) -> EndTxnResponse | asyncio.Future[EndTxnResponse]:
    """Decide the end and write the markers."""
    if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return EndTxnResponse(0, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    ended = broker.transactions.end(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, version
    )
    if isinstance(ended, asyncio.Future):
        return broker.answer(ended, lambda known: _response(known, version))
    return _response(ended, version)


def _response(ended: Ended, version: int) -> EndTxnResponse:
    error, producer_id, epoch = ended
    if version < END_RAISES:
        producer_id = epoch = -1
    return EndTxnResponse(0, error, producer_id, epoch)
