"""CreatePartitions (key 37), versions 0-3: add empty partitions to a topic.

They count against controller_mutation_rate; strict from version 3 on.

Version notes: 1 throttles after the answer (KIP-219), 2 is flexible, 3 knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.mutations import Mutations
from millstream.broker.topics import check_count
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

STRICT = 3  # clients understand THROTTLING_QUOTA_EXCEEDED


def handle(
    broker: Broker, connection: Connection, request: CreatePartitionsRequest, version: int
) -> CreatePartitionsResponse:
    """One result per topic."""
    names = [wanted.name for wanted in request.topics]
    mutations = Mutations(connection, strict=version >= STRICT)
    results = []
    for wanted in request.topics:
        if names.count(wanted.name) > 1:
            results.append(CreatePartitionsTopicResult(wanted.name, errors.INVALID_REQUEST, "Duplicate topic name."))
            continue
        if not connection.may(Operation.ALTER, Resource.TOPIC, wanted.name):
            results.append(
                CreatePartitionsTopicResult(wanted.name, errors.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
            )
            continue
        try:
            _grow(broker, wanted, request.validate_only, mutations)
            results.append(CreatePartitionsTopicResult(wanted.name))
        except (Refused, LogError) as e:
            results.append(CreatePartitionsTopicResult(wanted.name, e.code, str(e)))
    response = CreatePartitionsResponse(0, results)
    mutations.tell(response)
    return response


def _grow(broker: Broker, wanted: CreatePartitionsTopic, validate_only: bool, mutations: Mutations) -> None:
    topic = broker.log.topics.get(wanted.name)
    if topic is None:
        raise Refused(errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    present = len(topic.partitions)
    if topic.internal:
        raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: its partitions stay as they are")
    if wanted.count == present:
        raise Refused(errors.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise Refused(
            errors.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    check_count(wanted.count, broker.partition_count() - present)
    if wanted.assignments is not None and (
        len(wanted.assignments) != wanted.count - present
        or any(a.broker_ids != [broker.node_id] for a in wanted.assignments)
    ):
        raise Refused(
            errors.INVALID_REPLICA_ASSIGNMENT,
            f"The only broker is {broker.node_id}: each new partition can only be there.",
        )
    mutations.count(wanted.count - present)
    if not validate_only:
        broker.add_partitions(topic, wanted.count)
