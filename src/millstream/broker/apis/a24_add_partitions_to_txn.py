"""AddPartitionsToTxn (key 24), versions 0-5: a transaction will write to these partitions.

Clients send versions 0-3, one transaction each; from version 4 on it is batched, and may only verify (brokers among
themselves). If one partition is unknown nothing is added: the others answer OPERATION_NOT_ATTEMPTED. For partitions of
`commit` topics the answer waits for the disk.

Version notes: 1 throttles after the answer (KIP-219), 2 knows PRODUCER_FENCED (KIP-588), 3 is flexible, 4 has several
transactions and only verifies (KIP-890), 5 knows TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.topics import INTERNAL
from millstream.protocol import errors
from millstream.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition


def handle(
    broker: Broker, connection: Connection, request: AddPartitionsToTxnRequest, version: int
) -> AddPartitionsToTxnResponse | asyncio.Future[AddPartitionsToTxnResponse]:
    """One result per partition."""
    unsynced: list[Partition] = []
    if version >= 4:
        if not connection.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER):
            return AddPartitionsToTxnResponse(0, errors.CLUSTER_AUTHORIZATION_FAILED)
        results = [
            AddPartitionsToTxnResult(t.transactional_id, _add(broker, t, version, unsynced))
            for t in request.transactions
        ]
        response = AddPartitionsToTxnResponse(0, 0, results)
        return broker.flusher.answer(unsynced, response, _not_synced)
    only = AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        False,
        request.v3_and_below_topics,
    )
    topics = _add(broker, only, version, unsynced, connection)
    response = AddPartitionsToTxnResponse(0, results_by_topic_v3_and_below=topics)
    return broker.flusher.answer(unsynced, response, _not_synced)


def _not_synced(response: AddPartitionsToTxnResponse, _: dict[Partition, str]) -> AddPartitionsToTxnResponse:
    """The answer when the disk refused: nothing that was added counts."""
    added = [topic for result in response.results_by_transaction for topic in result.topic_results]
    for topic in [*added, *response.results_by_topic_v3_and_below]:
        for part in topic.results_by_partition:
            part.partition_error_code = part.partition_error_code or errors.COORDINATOR_NOT_AVAILABLE
    return response


def _add(
    broker: Broker,
    wanted: AddPartitionsToTxnTransaction,
    version: int,
    unsynced: list[Partition],
    client: Connection | None = None,
) -> list[AddPartitionsToTxnTopicResult]:
    """`client`: whose rights to check; brokers, who ask with version 4, have checked them.

    What must be on disk before the answer goes to `unsynced`.
    """
    forbidden = client is not None and not client.may(
        Operation.WRITE, Resource.TRANSACTIONAL_ID, wanted.transactional_id
    )
    unknown = set()
    denied = {t.name for t in wanted.topics if client and not client.may(Operation.WRITE, Resource.TOPIC, t.name)}
    places = set()
    for topic in wanted.topics:
        known = broker.log.topics.get(topic.name)
        for index in topic.partitions:
            places.add((topic.name, index))
            if known is None or not 0 <= index < len(known.partitions) or topic.name in INTERNAL:
                unknown.add((topic.name, index))
    if forbidden:
        error = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        unknown.clear()
        denied.clear()
    elif unknown or denied:
        error = errors.OPERATION_NOT_ATTEMPTED
    elif wanted.verify_only:
        error = broker.transactions.verify(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, places)
    else:
        error = broker.transactions.add(wanted.transactional_id, wanted.producer_id, wanted.producer_epoch, places)
        if not error:
            unsynced += broker.transactions.unsynced(wanted.transactional_id, (name for name, _ in places))
    error = broker.transactions.epoch_error(error, version, 2)
    return [
        AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(
                    index,
                    errors.TOPIC_AUTHORIZATION_FAILED
                    if topic.name in denied
                    else errors.UNKNOWN_TOPIC_OR_PARTITION
                    if (topic.name, index) in unknown
                    else error,
                )
                for index in topic.partitions
            ],
        )
        for topic in wanted.topics
    ]
