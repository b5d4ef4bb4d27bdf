"""DescribeTransactions (key 65), version 0: state, producer and partitions of transactional ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: DescribeTransactionsRequest, version: int
) -> DescribeTransactionsResponse:
    """One description per id."""
    return DescribeTransactionsResponse(0, [_describe(connection, each) for each in request.transactional_ids])


def _describe(connection: Connection, transactional_id: str) -> TransactionState:
    broker = connection.broker
    if not connection.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, transactional_id):
        return TransactionState(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, transactional_id)
    found = broker.transactions.transactions.get(transactional_id)
    if not transactional_id or found is None:
        code = errors.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else errors.INVALID_REQUEST
        return TransactionState(code, transactional_id)
    topics: dict[str, list[int]] = {}
    for name, index in sorted(found.partitions):
        if connection.may(Operation.DESCRIBE, Resource.TOPIC, name):
            topics.setdefault(name, []).append(index)
    return TransactionState(
        0,
        transactional_id,
        found.state.title,
        found.timeout_ms,
        found.started,
        found.producer_id,
        found.epoch,
        [TopicData(name, indexes) for name, indexes in topics.items()],
    )
