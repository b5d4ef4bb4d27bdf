"""CreateTopics (key 19), versions 2-7: create topics with partitions and settings.

Replication factor 1 or -1; a manual assignment may only name this broker. Validate-only checks everything and creates
nothing. A name that differs from another only in . and _ is allowed, as it is in Kafka when metrics do not collide.
Partitions count against controller_mutation_rate, also of what is only validated; strict from version 6 on.

Version notes: 2 tells throttle times, 3 throttles after the answer (KIP-219), 4 takes -1 for partitions and factor
(KIP-464), 5 is flexible and tells settings (KIP-525), 6 knows THROTTLING_QUOTA_EXCEEDED (KIP-599), 7 tells ids
(KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.apis.a32_describe_configs import source_of
from millstream.broker.refused import Refused
from millstream.broker.security.acls import CLUSTER, Operation, Resource
from millstream.broker.security.mutations import Mutations
from millstream.broker.topics import INTERNAL, check_count, check_name
from millstream.log import LogError
from millstream.log.config import SETTINGS, TopicConfig
from millstream.protocol import errors
from millstream.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection

STRICT = 6  # clients understand THROTTLING_QUOTA_EXCEEDED


def handle(broker: Broker, connection: Connection, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
    """One result per topic; a topic named twice is refused."""
    names = [topic.name for topic in request.topics]
    may_create = connection.may(Operation.CREATE, Resource.CLUSTER, CLUSTER)
    mutations = Mutations(connection, strict=version >= STRICT)
    results = []
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            results.append(_failed(name, errors.INVALID_REQUEST, "Duplicate topic name."))
            continue
        wanted = next(topic for topic in request.topics if topic.name == name)
        if not may_create and not connection.may(Operation.CREATE, Resource.TOPIC, name):
            results.append(_failed(name, errors.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."))
            continue
        try:
            results.append(_create(connection, wanted, request.validate_only, mutations))
        except (Refused, LogError) as e:
            results.append(_failed(name, e.code, str(e)))
    response = CreateTopicsResponse(0, results)
    mutations.tell(response)
    return response


def _failed(name: str, code: int, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=code, error_message=message, configs=None)


def _create(
    connection: Connection, wanted: CreatableTopic, validate_only: bool, mutations: Mutations
) -> CreatableTopicResult:
    broker = connection.broker
    check_name(wanted.name)
    if wanted.name in broker.log.topics:
        raise Refused(errors.TOPIC_ALREADY_EXISTS, f"Topic '{wanted.name}' already exists.")
    if wanted.name in INTERNAL:
        raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"{wanted.name} is internal: the broker makes it itself")
    overrides = {}
    for config in wanted.configs:
        if config.value is None:
            raise Refused(errors.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}")
        overrides[config.name] = config.value
    effective = TopicConfig(overrides, broker.log.defaults.topics)  # Kafka checks the settings before the partitions
    count = wanted.num_partitions
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise Refused(
                errors.INVALID_REQUEST,
                "A manual assignment was given, so partitions and replication factor must be -1.",
            )
        count = len(wanted.assignments)
        if sorted(a.partition_index for a in wanted.assignments) != list(range(count)):
            raise Refused(errors.INVALID_REPLICA_ASSIGNMENT, "Partitions of a manual assignment must be 0, 1, 2, ...")
        if any(a.broker_ids != [broker.node_id] for a in wanted.assignments):
            raise Refused(
                errors.INVALID_REPLICA_ASSIGNMENT,
                f"The only broker is {broker.node_id}: each partition can only be there.",
            )
    elif wanted.replication_factor < -1 or wanted.replication_factor == 0:
        raise Refused(
            errors.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 for the default."
        )
    elif count != -1 and count < 1:
        raise Refused(errors.INVALID_PARTITIONS, "Number of partitions must be larger than 0, or -1 for the default.")
    elif wanted.replication_factor not in (-1, 1):
        code = errors.INVALID_REPLICATION_FACTOR
        raise Refused(
            code, f"Unable to replicate the partition {wanted.replication_factor} time(s): there is one broker."
        )
    if count == -1:
        count = broker.settings.integer("num.partitions")
    check_count(count, broker.partition_count())
    mutations.count(count)
    if validate_only:
        topic_id = bytes(16)
    else:
        topic = broker.create_topic(wanted.name, count, overrides)
        effective = topic.config
        topic_id = topic.id.bytes
    if not connection.may(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, wanted.name):
        denied = errors.TOPIC_AUTHORIZATION_FAILED
        return CreatableTopicResult(wanted.name, topic_id, 0, None, denied, -1, -1, [])
    configs = [
        CreatableTopicConfigs(name, effective.get(name), False, source_of(broker, effective, name), False)
        for name in SETTINGS
    ]
    return CreatableTopicResult(wanted.name, topic_id, 0, None, 0, count, 1, configs)
