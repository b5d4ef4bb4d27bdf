"""TxnOffsetCommit (key 28), versions 0-6: offsets that count when the producer's transaction commits.

Versions 0-2 name no member (KIP-447 came with 3). From version 5 the group joins the transaction by this request;
version 6 names topics by id and knows STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND. For `commit` topics the group's being in
the transaction is synced before the offsets are stored, and they before the answer.

Version notes: 1 throttles after the answer (KIP-219), 2 has the leader epoch (KIP-320), 3 is flexible and names the
member (KIP-447), 4 knows TRANSACTION_ABORTABLE (KIP-890), 5 joins the group to the transaction, 6 names topics by id
(KIP-1319).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker import failpoints
from millstream.broker.apis.a08_offset_commit import named_topic, not_synced
from millstream.broker.groups.group import Committer
from millstream.broker.groups.offsets import Committed, Where
from millstream.broker.security.acls import Operation, Resource
from millstream.protocol import errors
from millstream.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Topic

Known = tuple["Topic", TxnOffsetCommitRequestPartition, TxnOffsetCommitResponsePartition]
BY_ID = 6


def handle(
    broker: Broker, connection: Connection, request: TxnOffsetCommitRequest, version: int
) -> TxnOffsetCommitResponse | asyncio.Future[TxnOffsetCommitResponse]:
    """Check producer and member, store inside the transaction, answer per partition."""
    forbidden = 0
    if not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        forbidden = errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not connection.may(Operation.READ, Resource.GROUP, request.group_id):
        forbidden = errors.GROUP_AUTHORIZATION_FAILED
    known: list[Known] = []
    topics = []
    for wanted in request.topics:
        topic, error = named_topic(connection, wanted, by_id=version >= BY_ID)
        parts = []
        for part in wanted.partitions:
            result = TxnOffsetCommitResponsePartition(part.partition_index, forbidden or error)
            parts.append(result)
            if topic is None or result.error_code:
                continue
            if not 0 <= part.partition_index < len(topic.partitions):
                result.error_code = errors.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known.append((topic, part, result))
        topics.append(TxnOffsetCommitResponseTopic(wanted.name, wanted.topic_id, parts))
    response = TxnOffsetCommitResponse(0, topics)
    if not known:
        return response
    error = _check(broker, request, version, known)
    names = {topic.name for topic, _, _ in known}
    if not error and broker.transactions.unsynced(request.transactional_id, names):
        go_on = connection.hold()  # the end of the transaction, say, comes after this
        task = broker.loop.create_task(_later(broker, connection, request, version, response, names))
        task.add_done_callback(lambda _: go_on())
        return task
    _store(broker, request, known, error)
    unsynced = broker.groups.commits.unsynced(request.group_id)
    return broker.flusher.answer(unsynced, response, not_synced)


async def _later(
    broker: Broker,
    connection: Connection,
    request: TxnOffsetCommitRequest,
    version: int,
    response: TxnOffsetCommitResponse,
    names: set[str],
) -> TxnOffsetCommitResponse:
    """Begin again when it is on disk that the group is in the transaction."""
    failed = await broker.flusher.synced(broker.transactions.unsynced(request.transactional_id, names))
    failpoints.reach(failpoints.ADDED_SYNCED)
    if failed:
        return not_synced(response, failed)
    answer = handle(broker, connection, request, version)
    return await answer if isinstance(answer, asyncio.Future) else answer


def _store(broker: Broker, request: TxnOffsetCommitRequest, known: list[Known], error: int) -> None:
    """Store what may be stored, and put the others' errors into their results."""
    longest = broker.settings.integer("offset.metadata.max.bytes")
    now = broker.now_ms()
    commits: list[tuple[Where, Committed]] = []
    for topic, part, result in known:
        metadata = part.committed_metadata or ""
        if error:
            result.error_code = error
        elif len(metadata) > longest:
            result.error_code = errors.OFFSET_METADATA_TOO_LARGE
        else:
            what = Committed(part.committed_offset, part.committed_leader_epoch, metadata, now)
            commits.append(((topic.name, part.partition_index), what))
    if commits:
        error = broker.groups.commits.commit_pending(
            request.group_id, (request.producer_id, request.producer_epoch), commits
        )
        for _, _, result in known:
            result.error_code = result.error_code or error


def _check(broker: Broker, request: TxnOffsetCommitRequest, version: int, known: list[Known]) -> int:
    """The producer first, then the member, as Kafka (GroupCoordinatorService.commitTransactionalOffsets)."""
    if not request.group_id:
        return errors.INVALID_GROUP_ID
    producer = (request.producer_id, request.producer_epoch)
    place = broker.groups.commits.place(request.group_id)
    error = broker.transactions.check_offset_commit(request.transactional_id, producer, place, version)
    if error:
        return error
    places = [(topic.id.bytes, part.partition_index) for topic, part, _ in known]
    epoch = request.generation_id_or_member_epoch
    by = Committer(request.member_id, request.group_instance_id, epoch, places, version, transactional=True)
    error = broker.groups.commits.check(request.group_id, by)
    if version < BY_ID and error in (errors.STALE_MEMBER_EPOCH, errors.GROUP_ID_NOT_FOUND):
        return errors.ILLEGAL_GENERATION
    return error
