"""DescribeProducers (key 61), version 0: idempotent and transactional producers that a partition knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic


def handle(
    broker: Broker, connection: Connection, request: DescribeProducersRequest, version: int
) -> DescribeProducersResponse:
    """Producers per partition."""
    topics = []
    for wanted in request.topics:
        topic = broker.log.topics.get(wanted.name)
        topics.append(
            TopicResponse(
                wanted.name,
                [
                    _describe(topic, index)
                    if connection.may(Operation.READ, Resource.TOPIC, wanted.name)
                    else PartitionResponse(index, errors.TOPIC_AUTHORIZATION_FAILED, None)
                    for index in wanted.partition_indexes
                ],
            )
        )
    return DescribeProducersResponse(0, topics)


def _describe(topic: Topic | None, index: int) -> PartitionResponse:
    if topic is None or not 0 <= index < len(topic.partitions):
        return PartitionResponse(
            index, errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        )
    found = []
    for producer_id, p in topic.partitions[index].producers.items():
        found.append(
            ProducerState(
                producer_id, p.epoch, p.last_sequence, p.last_timestamp, p.coordinator_epoch, p.transaction_start
            )
        )
    return PartitionResponse(index, 0, None, found)
