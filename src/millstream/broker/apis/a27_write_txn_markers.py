"""WriteTxnMarkers (key 27), versions 1-2: end a producer's transaction in given partitions.

Kafka's coordinators send it to other brokers; here it only comes from an administrator who aborts a hanging transaction
(kafka-transactions.sh abort). Only aborts are taken: a commit belongs to the coordinator, which writes its own markers.
In `commit` topics, and in the offsets topic while there are any, it is answered when it is on disk.

Version notes: 1 is flexible, 2 tells the version of the transaction (KIP-1228).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.topics import OFFSETS_TOPIC
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from millstream.protocol.records import build_marker

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition


def handle(
    broker: Broker, connection: Connection, request: WriteTxnMarkersRequest, version: int
) -> WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]:
    """One result per partition."""
    allowed = connection.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER) or connection.may(
        Operation.ALTER, Resource.CLUSTER, CLUSTER
    )
    results = []
    unsynced: list[Partition] = []
    for marker in request.markers:
        topics = [
            WritableTxnMarkerTopicResult(
                topic.name,
                [
                    WritableTxnMarkerPartitionResult(
                        index,
                        _write(broker, marker, topic.name, index, unsynced)
                        if allowed
                        else errors.CLUSTER_AUTHORIZATION_FAILED,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        results.append(WritableTxnMarkerResult(marker.producer_id, topics))
    response = WriteTxnMarkersResponse(results)
    return broker.flusher.answer(unsynced, response, _not_synced)


def _not_synced(response: WriteTxnMarkersResponse, failed: dict[Partition, str]) -> WriteTxnMarkersResponse:
    bad = {(partition.topic.name, partition.index) for partition in failed}
    for marker in response.markers:
        for topic in marker.topics:
            for part in topic.partitions:
                if (topic.name, part.partition_index) in bad and not part.error_code:
                    part.error_code = errors.KAFKA_STORAGE_ERROR
    return response


def _write(broker: Broker, marker: WritableTxnMarker, name: str, index: int, unsynced: list[Partition]) -> int:
    topic = broker.log.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return errors.UNKNOWN_TOPIC_OR_PARTITION
    if marker.transaction_result:
        return errors.CLUSTER_AUTHORIZATION_FAILED
    now = broker.now_ms()
    batch = build_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=False,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now,
    )
    try:
        topic.partitions[index].append(batch, now, internal=True)
    except LogError as e:
        return e.code
    durable = broker.log.has_commit if name == OFFSETS_TOPIC else broker.log.is_commit(name)
    if durable:
        unsynced.append(topic.partitions[index])
    if name == OFFSETS_TOPIC:
        broker.groups.commits.transaction_ended(marker.producer_id, False, index, durable=durable)
    return errors.NONE
