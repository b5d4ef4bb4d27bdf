"""TxnOffsetCommit (key 28), versions 0-6: offsets that count when the producer's transaction commits.

Versions 0-2 name no member (KIP-447 came with 3). From version 5 the group joins the transaction by this request;
version 6 names topics by id.
"""

from typing import TYPE_CHECKING

from millstream.broker.groups.offsets import Committed, Where
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.transactions.coordinator import OFFSET_COMMIT_ADDS
from millstream.protocol import errors
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection


def handle(
    broker: "Broker", connection: "Connection", request: TxnOffsetCommitRequest, version: int
) -> TxnOffsetCommitResponse:
    """Check member and producer, store inside the transaction, answer per partition."""
    forbidden = 0
    if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        forbidden = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        forbidden = errors.GROUP_AUTHORIZATION_FAILED
    error = forbidden or _check(broker, request, version)
    now = broker.now_ms()
    longest = broker.settings.integer("offset.metadata.max.bytes")
    commits: list[tuple[Where, Committed]] = []
    topics = []
    for wanted in request.topics:
        topic = broker.topic_by_id(wanted.topic_id) if version >= 6 else broker.log.topics.get(wanted.name)
        name = topic.name if topic is not None else wanted.name
        denied = bool(name) and not connection.may(Operation.READ, Resource.TOPIC, name)
        parts = []
        for part in wanted.partitions:
            code = error
            if forbidden:
                pass
            elif denied:
                code = errors.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= part.partition_index < len(topic.partitions):
                code = errors.UNKNOWN_TOPIC_ID if version >= 6 else errors.UNKNOWN_TOPIC_OR_PARTITION
            elif not error and len(part.committed_metadata or "") > longest:
                code = errors.OFFSET_METADATA_TOO_LARGE
            elif not error:
                what = Committed(part.committed_offset, part.committed_leader_epoch, part.committed_metadata or "", now)
                commits.append(((topic.name, part.partition_index), what))
            parts.append(TxnOffsetCommitResponsePartition(part.partition_index, code))
        topics.append(TxnOffsetCommitResponseTopic(wanted.name, wanted.topic_id, parts))
    if commits:
        error = broker.groups.commit_pending(request.group_id, (request.producer_id, request.producer_epoch), commits)
        if error:
            for answer in topics:
                for result in answer.partitions:
                    result.error_code = result.error_code or error
    return TxnOffsetCommitResponse(0, topics)


def _check(broker: "Broker", request: TxnOffsetCommitRequest, version: int) -> int:
    if not request.group_id:
        return errors.INVALID_GROUP_ID
    error = broker.groups.check_transactional_commit(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    if error:
        return error
    producer = (request.producer_id, request.producer_epoch)
    places = {broker.groups.place(request.group_id)}
    if version >= OFFSET_COMMIT_ADDS:
        error = broker.transactions.add(request.transactional_id, *producer, places, 2)
    else:
        error = broker.transactions.verify(request.transactional_id, *producer, places)
    return errors.INVALID_PRODUCER_EPOCH if error == errors.PRODUCER_FENCED else error
