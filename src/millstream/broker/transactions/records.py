"""What transactions store: their state as records of `__transaction_state`, with Kafka's schemas."""

from __future__ import annotations

from millstream.broker.internal_topics import Replayed, Write
from millstream.broker.transactions.transaction import BY_NUMBER, PREPARED, Transaction
from millstream.protocol.messages.transaction_records import PartitionsSchema, TransactionLogKey, TransactionLogValue

TRANSACTION = 0
VERSION = 1


def write(transaction: Transaction) -> Write:
    """The state of a transactional id."""
    t = transaction
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(t.partitions):
        topics.setdefault(topic, []).append(index)
    value = TransactionLogValue(
        t.producer_id,
        t.previous_producer_id,
        t.next_producer_id,
        t.epoch,
        t.next_epoch if t.state in PREPARED else -1,
        t.timeout_ms,
        t.state.number,
        [PartitionsSchema(topic, indexes) for topic, indexes in topics.items()],
        t.updated,
        t.started,
        t.version,
    )
    return TransactionLogKey(t.id), value, VERSION


def removal(transactional_id: str) -> Write:
    """The transactional id is forgotten."""
    return TransactionLogKey(transactional_id), None, 0


def read(record: Replayed) -> tuple[str, Transaction | None]:
    """The opposite of write."""
    transactional_id = TransactionLogKey.decode(record.key, 0).transactional_id
    if record.value is None:
        return transactional_id, None
    value = TransactionLogValue.decode(record.value, record.version)
    transaction = Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        BY_NUMBER[value.transaction_status],
        value.previous_producer_id,
        value.producer_epoch - 1 if value.client_transaction_version >= 2 else -1,
        {(p.topic, index) for p in value.transaction_partitions or () for index in p.partition_ids},
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        value.client_transaction_version,
        value.next_producer_id,
        value.next_producer_epoch,
    )
    return transactional_id, transaction
