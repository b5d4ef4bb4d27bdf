"""Produce (key 0), versions 3-13: append record batches.

acks 0 gets no answer (and a closed connection on an error, as in Kafka); 1 and all are the same here: one broker holds
the log. Batches are validated as a whole by the log before a byte is written; idempotent duplicates are answered with
their first offset. A topic whose durability is ``commit`` is answered after the fsync that covers the batch; many
producers share one, and consumers see it only then; a batch of a transaction waits before it is appended, until it is on
disk that its partition is in the transaction. Version 13 names topics by id.
A topic whose ``millstream.overload`` is ``backpressure`` slows its producers by throttle times (KIP-219: the answer
goes out at once, then the connection is not read for so long); at its limit appends wait (see ``broker/parking.py``)
and are answered with REQUEST_TIMED_OUT, which clients try again, when the request's timeout is nearly over.
A client over its ``producer_byte_rate`` waits in the same way.
"""

import asyncio
import logging
from struct import Struct
from typing import TYPE_CHECKING

from millstream.broker.postponed import Answer, Postponed
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.quotas import PRODUCE
from millstream.broker.transactions.coordinator import PRODUCE_ADDS
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from millstream.protocol.records import HEADER_SIZE, MAGIC, OVERHEAD, TRANSACTIONAL
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection
    from millstream.broker.parking import Waiting
    from millstream.broker.transactions.turns import Turns
    from millstream.log import Partition, Topic

logger = logging.getLogger(__name__)
# Errors of an append that Kafka answers without the start of the log (ReplicaManager.appendToLocalLog).
WITHOUT_START = {
    errors.CORRUPT_MESSAGE,
    errors.MESSAGE_TOO_LARGE,
    errors.RECORD_LIST_TOO_LARGE,
    errors.KAFKA_STORAGE_ERROR,
}
PRODUCER = Struct(">qhi")  # id, epoch, first sequence
PRODUCER_AT = 43  # in a batch
LEAST_BATCH = 17  # fewer bytes are no beginning of a batch of any format
# Size of a batch behind its first twelve bytes. Unsigned: a negative one is announced by garbage, and too large as well.
_announced = Struct(">8xI").unpack_from
Blocked = tuple["Topic", PartitionProduceData, PartitionProduceResponse]


def handle(broker: "Broker", connection: "Connection", request: ProduceRequest, version: int) -> Answer:
    """Append, and answer when the topic's durability is reached."""
    return _produce(broker, connection, request, version, broker.quotas.active)


def _produce(
    broker: "Broker", connection: "Connection", request: ProduceRequest, version: int, counted: bool
) -> Answer:
    """``counted``: whether the request counts against the client's quota."""
    acks = request.acks
    transactional_id = request.transactional_id
    unsynced: list[Partition] = []
    inside = _transactional(request)
    forbidden = inside and (
        transactional_id is None or not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
    )
    turns = broker.transactions.turns
    blocked: list[Blocked] = []
    postponed = Postponed()
    failed = throttle = 0
    topics = []
    now = broker.now_ms()
    for data in request.topic_data:
        if version >= 13:
            topic = broker.topic_by_id(data.topic_id)
            missing = errors.UNKNOWN_TOPIC_ID
        else:
            topic = broker.log.topics.get(data.name)
            missing = errors.UNKNOWN_TOPIC_OR_PARTITION
        name = topic.name if topic is not None else data.name
        denied = bool(name) and not connection.may(Operation.WRITE, Resource.TOPIC, name)
        results = []
        for part in data.partition_data:
            if forbidden:
                result = PartitionProduceResponse(part.index, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
            elif denied:
                result = PartitionProduceResponse(part.index, errors.TOPIC_AUTHORIZATION_FAILED, -1)
            elif topic is None:
                result = PartitionProduceResponse(part.index, missing, -1)
            elif not 0 <= part.index < len(topic.partitions):
                result = PartitionProduceResponse(part.index, errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
            elif part.records is None or not len(part.records):
                result = PartitionProduceResponse(part.index, errors.INVALID_RECORD, -1, error_message="no records")
            elif topic.internal:
                result = PartitionProduceResponse(part.index, errors.INVALID_TOPIC_EXCEPTION, -1)
            elif _cut_short(part.records):
                result = PartitionProduceResponse(part.index, errors.INVALID_RECORD, -1, error_message="no whole batch")
            elif acks not in (-1, 0, 1) and 0 < _behind(part.records) < LEAST_BATCH:
                result = PartitionProduceResponse(part.index, errors.INVALID_REQUIRED_ACKS, -1)
            elif code := _check_transaction(broker, transactional_id, topic, part, version):
                result = PartitionProduceResponse(part.index, code, -1)
            elif acks not in (-1, 0, 1) and _whole(part.records):
                result = PartitionProduceResponse(part.index, errors.INVALID_REQUIRED_ACKS, -1)
            elif (inside or turns) and _out_of_turn(turns, topic, part, version):
                start = topic.partitions[part.index].start_offset
                result = PartitionProduceResponse(part.index, errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1, start)
            elif inside and (waits_for := _unsynced(broker, transactional_id, topic, part)):
                result = PartitionProduceResponse(part.index, 0, -1)
                postponed.add(data, part, result, waits_for)
                results.append(result)
                continue
            elif topic.config.overload == "backpressure":
                verdict = broker.parking.verdict(topic.partitions[part.index])
                if verdict.blocked:
                    result = PartitionProduceResponse(part.index, 0, -1)
                    blocked.append((topic, part, result))
                else:
                    result = _append(topic, part.index, part.records, now, unsynced)
                    throttle = max(throttle, verdict.throttle_ms)
                    topic.overload.throttled_requests += verdict.throttle_ms > 0
                    topic.overload.throttled_ms += verdict.throttle_ms
            else:
                result = _append(topic, part.index, part.records, now, unsynced)
            if inside and topic is not None and not forbidden and not denied:
                _note(turns, topic, part, result.error_code)
            failed = failed or result.error_code
            results.append(result)
        topics.append(TopicProduceResponse(data.name, data.topic_id, results))
    if counted:
        throttle = max(throttle, connection.count(PRODUCE, connection.request_size))
    response = ProduceResponse(topics, throttle)
    if throttle:
        connection.mute(throttle / 1000)
    answer: Answer = response
    if blocked:
        answer = _wait(broker, request, response, blocked, unsynced, version)
    elif acks == 0:
        if failed:
            raise ProtocolError(f"a produce request without acknowledgement failed: {errors.name(failed)}")
        answer = None
    elif unsynced:
        answer = broker.flusher.after(unsynced, response, _not_flushed)
    if not postponed:
        return answer
    return postponed.start(
        broker, connection, request, answer, lambda rest: _produce(broker, connection, rest, version, False)
    )


def _unsynced(
    broker: "Broker", transactional_id: str | None, topic: "Topic", part: PartitionProduceData
) -> "list[Partition]":
    """What must be synced before a batch of a transaction may be appended."""
    batch = part.records
    if transactional_id is None or len(batch) <= HEADER_SIZE or not batch[22] & TRANSACTIONAL:
        return []
    return broker.transactions.unsynced(transactional_id, (topic.name,))


def _wait(
    broker: "Broker",
    request: ProduceRequest,
    response: ProduceResponse,
    blocked: "list[Blocked]",
    unsynced: "list[Partition]",
    version: int,
) -> "asyncio.Future[ProduceResponse | None]":
    """A future of the answer to a request some of whose appends have to wait for consumers."""
    future: asyncio.Future[ProduceResponse | None] = broker.loop.create_future()
    transactional_id, acks = request.transactional_id, request.acks
    left = len(blocked)
    items: list[Waiting] = []

    def one_done() -> None:
        nonlocal left
        left -= 1
        if left or future.done():
            return
        if acks == 0:
            future.set_result(None)  # an error is only counted: closing the connection would not tell the client more
        elif unsynced:
            broker.flusher.after(unsynced, response, _not_flushed).add_done_callback(synced)
        else:
            future.set_result(response)

    def synced(source: "asyncio.Future[ProduceResponse]") -> None:
        if not future.done():
            future.set_result(source.result())

    def wait(topic: "Topic", index: int, batch: bytes, result: PartitionProduceResponse) -> None:
        def append() -> None:
            part = PartitionProduceData(index, memoryview(bytearray(batch)))
            # A second time: the transaction may have ended meanwhile.
            if code := _check_transaction(broker, transactional_id, topic, part, version):
                result.error_code = code
            else:
                done = _append(topic, index, part.records, broker.now_ms(), unsynced)
                for name in ("error_code", "base_offset", "log_append_time_ms", "log_start_offset", "record_errors"):
                    setattr(result, name, getattr(done, name))
                result.error_message = done.error_message
            one_done()

        def give_up() -> None:
            limit = topic.config.backlog_bytes
            result.error_code, result.error_message = (
                errors.REQUEST_TIMED_OUT,
                (f"{topic.name}-{index}: consumers are {limit} bytes behind (millstream.backlog.bytes); try again"),
            )
            one_done()

        item = broker.parking.park(topic.partitions[index], len(batch), request.timeout_ms, append, give_up)
        if item is None:
            give_up()
        else:
            items.append(item)

    for topic, part, result in blocked:
        # A copy, because the request's own bytes are read over.
        wait(topic, part.index, bytes(part.records), result)

    def ended(source: "asyncio.Future[ProduceResponse | None]") -> None:
        if source.cancelled():  # the connection is closed: its client sends again, and this would come twice
            for item in items:
                broker.parking.forget(item)

    future.add_done_callback(ended)
    return future


def _transactional(request: ProduceRequest) -> bool:
    """Whether a partition's first batch is in a transaction; the request must name it (RequestUtils.hasTransactionalRecords)."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            batch = part.records
            if batch is not None and len(batch) > HEADER_SIZE and batch[22] & TRANSACTIONAL and not _cut_short(batch):
                return bool(batch[16] == MAGIC)
    return False


def _check_transaction(
    broker: "Broker", transactional_id: str | None, topic: "Topic", part: PartitionProduceData, version: int
) -> int:
    """The error code of a batch that must not be appended for its transaction's sake."""
    batch = part.records
    if len(batch) <= HEADER_SIZE:
        return 0  # the log says what is wrong with it
    if _behind(batch) > 0:
        return errors.INVALID_RECORD  # clients send one batch per partition; Kafka refuses more, too
    if transactional_id is None or not batch[22] & TRANSACTIONAL:
        return 0
    return broker.transactions.check_produce(transactional_id, (topic.name, part.index), batch, version)


def _whole(batch: memoryview | None) -> bool:
    """Whether a partition's bytes look like one batch; Kafka looks at that before anything else."""
    if batch is None or len(batch) <= HEADER_SIZE or batch[16] != MAGIC:
        return False
    return bool(_announced(batch)[0] + OVERHEAD == len(batch))


def _out_of_turn(turns: "Turns", topic: "Topic", part: PartitionProduceData, version: int) -> bool:
    """Whether a batch that was refused must come first, or one of a transaction of version 2 does not begin with 0."""
    batch = part.records
    producer_id, _, sequence = PRODUCER.unpack_from(batch, PRODUCER_AT)
    if turns.early((topic.name, part.index), producer_id, sequence):
        return True
    begins = version >= PRODUCE_ADDS and batch[22] & TRANSACTIONAL and sequence > 0
    return bool(begins and producer_id not in topic.partitions[part.index].producers)


def _note(turns: "Turns", topic: "Topic", part: PartitionProduceData, code: int) -> None:
    """Remember that a batch of a transaction was refused, or that it was taken."""
    batch = part.records
    if batch is None or not 0 <= part.index < len(topic.partitions) or _cut_short(batch):
        return
    if len(batch) <= HEADER_SIZE or not batch[22] & TRANSACTIONAL:
        return
    producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_AT)
    if not code:
        turns.taken((topic.name, part.index), producer_id)
        return
    known = topic.partitions[part.index].producers.get(producer_id)
    if known is None or known.transaction_start < 0:
        turns.refused((topic.name, part.index), producer_id, epoch, sequence)


def _behind(batch: memoryview) -> int:
    """How many bytes there are behind the first batch."""
    return len(batch) - int(_announced(batch)[0]) - OVERHEAD


def _cut_short(batch: memoryview) -> bool:
    """Whether the first batch ends before its announced end."""
    return len(batch) < HEADER_SIZE or bool(_announced(batch)[0] + OVERHEAD > len(batch))


def _append(
    topic: "Topic", index: int, batches: memoryview, now: int, unsynced: "list[Partition]"
) -> PartitionProduceResponse:
    partition = topic.partitions[index]
    try:
        appended = partition.append(batches, now)
    except LogError as e:
        record_errors = [BatchIndexAndErrorMessage(0, str(e))] if e.code == errors.INVALID_RECORD else []
        told = e.code not in WITHOUT_START and (e.code != errors.INVALID_RECORD or _whole(batches))
        start = partition.start_offset if told else -1
        return PartitionProduceResponse(index, e.code, -1, -1, start, record_errors, str(e))
    if topic.config.durability == "commit":
        unsynced.append(partition)
    return PartitionProduceResponse(index, 0, appended.base_offset, appended.log_append_time, appended.log_start_offset)


def _not_flushed(response: ProduceResponse, failed: "dict[Partition, str]") -> ProduceResponse:
    """The answer when an fsync failed: nothing of those partitions is acknowledged."""
    bad = {(p.topic.name, p.index): text for p, text in failed.items()}
    bad_ids = {(p.topic.id.bytes, p.index): text for p, text in failed.items()}
    for topic in response.responses:
        for part in topic.partition_responses:
            text = bad.get((topic.name, part.index)) or bad_ids.get((topic.topic_id, part.index))
            if text and not part.error_code:
                part.error_code, part.base_offset, part.error_message = errors.KAFKA_STORAGE_ERROR, -1, text
    return response
