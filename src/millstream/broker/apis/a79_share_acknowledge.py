"""ShareAcknowledge (key 79), versions 1-2: a member is done with records, or keeps them longer (KIP-932).

Answered when it is stored: it is never undone then. Where the topic is `commit`, when it is on disk.

Version notes: 0 was early access in Kafka 4.0 and is gone; 2 renews locks (KIP-1222).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.share.partition import Ack, Acknowledgement
from millstream.broker.share.records import Where
from millstream.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Place
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition, Topic
    from millstream.protocol.messages import share_fetch

Results = dict[Place, tuple[int, str | None]]  # error code and text by place


def handle(
    broker: Broker, connection: Connection, request: ShareAcknowledgeRequest, version: int
) -> ShareAcknowledgeResponse | asyncio.Future[ShareAcknowledgeResponse]:
    """One result per partition."""
    group_id, member = request.group_id or "", request.member_id or ""
    if not connection.may(Operation.READ, Resource.GROUP, group_id):
        return ShareAcknowledgeResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    given = {
        (topic.topic_id, part.partition_index): part.acknowledgement_batches
        for topic in request.topics
        for part in topic.partitions
    }
    try:
        if not group_id or not member:
            raise Refused(errors.INVALID_REQUEST, "A share group's member has a group id and a member id.")
        if request.share_session_epoch == INITIAL_EPOCH:
            raise Refused(errors.INVALID_SHARE_SESSION_EPOCH, "A share session does not begin with acknowledgements.")
        check_renewal(broker, group_id, request.is_renew_ack, given.values())
        session = broker.share_sessions.known(group_id, member, request.share_session_epoch)
    except Refused as e:
        return ShareAcknowledgeResponse(0, e.code, str(e))
    results = acknowledged(connection, group_id, member, given)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share_sessions.close(session)
    topics: dict[bytes, list[PartitionData]] = {}
    for (topic_id, index), (code, text) in results.items():
        topics.setdefault(topic_id, []).append(PartitionData(index, code, text))
    response = ShareAcknowledgeResponse(
        responses=[ShareAcknowledgeTopicResponse(topic_id, parts) for topic_id, parts in topics.items()]
    )
    if version >= 2:
        response.acquisition_lock_timeout_ms = broker.dynamic.of_group(group_id, "share.record.lock.duration.ms")
    return broker.flusher.answer(unsynced(broker, group_id, results), response, _not_synced)


def _not_synced(response: ShareAcknowledgeResponse, _: dict[Partition, str]) -> ShareAcknowledgeResponse:
    for topic in response.responses:
        for part in topic.partitions:
            part.error_code = part.error_code or errors.KAFKA_STORAGE_ERROR
    return response


# ---- what ShareFetch does, too

Batches = Iterable["AcknowledgementBatch | share_fetch.AcknowledgementBatch"]


def check_renewal(broker: Broker, group_id: str, renews: bool, given: Iterable[Batches]) -> None:
    """Raise Refused unless only a request that says so renews locks, and the group allows that (KIP-1222)."""
    found = any(Ack.RENEW in batch.acknowledge_types for batches in given for batch in batches)
    if found and not renews:
        raise Refused(errors.INVALID_REQUEST, "Locks are renewed only by a request with IsRenewAck.")
    if found and broker.dynamic.text_of_group(group_id, "share.renew.acknowledge.enable") != "true":
        raise Refused(errors.INVALID_REQUEST, "share.renew.acknowledge.enable is false for the group.")


def acknowledged(connection: Connection, group_id: str, member: str, given: Mapping[Place, Batches]) -> Results:
    """Make the acknowledgements of a request, each partition's all or none."""
    results: Results = {}
    for (topic_id, index), batches in given.items():
        topic = connection.broker.topic_by_id(topic_id)
        code, text = 0, None
        try:
            _acknowledge(connection, group_id, member, readable(connection, topic, index), index, batches)
        except Refused as e:
            code, text = e.code, str(e)
        except LogError as e:
            code, text = e.code, str(e)
        results[topic_id, index] = code, text
    return results


def readable(connection: Connection, topic: Topic | None, index: int) -> Topic:
    """The topic, if it has the partition and the client may read it. Raises Refused."""
    if topic is None:
        raise Refused(errors.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if not connection.may(Operation.READ, Resource.TOPIC, topic.name):
        raise Refused(errors.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    if not 0 <= index < len(topic.partitions):
        raise Refused(errors.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return topic


def _acknowledge(
    connection: Connection, group_id: str, member: str, topic: Topic, index: int, batches: Batches
) -> None:
    partitions = connection.broker.groups.share_partitions
    live = partitions.open(group_id, topic, index)
    said = [Acknowledgement(b.first_offset, b.last_offset, b.acknowledge_types) for b in batches]
    partitions.acknowledge(live, member, said)


def unsynced(broker: Broker, group_id: str, results: Results) -> list[Partition]:
    """What has to be synced before acknowledgements that were made are answered."""
    made = [Where(group_id, *place) for place, (code, _) in results.items() if not code]
    return broker.groups.share.unacknowledged(group_id, made) if made else []
