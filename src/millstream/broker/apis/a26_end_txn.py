"""EndTxn (key 26), versions 0-5: commit or abort. From version 5 each end raises the producer's epoch (KIP-890)."""

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(broker: "Broker", connection: "Connection", request: EndTxnRequest, version: int) -> EndTxnResponse:
    """Decide the end and write the markers."""
    if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return EndTxnResponse(0, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error, producer_id, epoch = broker.transactions.end(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, version
    )
    if version < 5:
        producer_id = epoch = -1
    return EndTxnResponse(0, error, producer_id, epoch)
