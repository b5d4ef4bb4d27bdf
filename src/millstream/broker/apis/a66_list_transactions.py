"""ListTransactions (key 66), versions 0-2: transactional ids by state, producer, age (1) and pattern (2).

Version notes: 1 filters by age (KIP-994), 2 by pattern (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.patterns import PatternError, compile_pattern
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.transactions.transaction import State
from millstream.protocol import errors
from millstream.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection


def handle(
    broker: Broker, connection: Connection, request: ListTransactionsRequest, version: int
) -> ListTransactionsResponse:
    """The ids that all filters let through."""
    titles = {state.title for state in State}
    states = set(request.state_filters)
    producers = set(request.producer_id_filters)
    pattern = None
    if request.transactional_id_pattern:
        try:
            pattern = compile_pattern(request.transactional_id_pattern)
        except PatternError:
            return ListTransactionsResponse(0, errors.INVALID_REGULAR_EXPRESSION)
    now = broker.now_ms()
    listed = []
    for found in broker.transactions.transactions.values():
        if states and found.state.title not in states:
            continue
        if producers and found.producer_id not in producers:
            continue
        if request.duration_filter >= 0 and (found.started < 0 or now - found.started <= request.duration_filter):
            continue
        if pattern is not None and not pattern.fullmatch(found.id):
            continue
        if not connection.may(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, found.id):
            continue
        listed.append(TransactionState(found.id, found.producer_id, found.state.title))
    return ListTransactionsResponse(0, 0, sorted(states - titles), listed)
