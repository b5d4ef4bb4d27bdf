"""Produce (key 0), versions 3-13: append record batches.

acks 0 gets no answer (and a closed connection on an error, as in Kafka); 1 and all are the same here: one broker holds
the log. Batches are validated as a whole by the log before a byte is written; idempotent duplicates are answered with
their first offset. A topic whose durability is ``commit`` is answered after the fsync that covers the batch; many
producers share one, and consumers see it only then. Version 13 names topics by id.
Gaps: throttling.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

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
from millstream.protocol.records import HEADER_SIZE, OVERHEAD, TRANSACTIONAL
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.connection import Connection
    from millstream.log import Partition, Topic

logger = logging.getLogger(__name__)


def handle(
    broker: "Broker", connection: "Connection", request: ProduceRequest, version: int
) -> "ProduceResponse | asyncio.Future[ProduceResponse] | None":
    """Append, and answer when the topic's durability is reached."""
    acks = request.acks
    transactional_id = request.transactional_id
    unsynced: list[Partition] = []
    failed = 0
    topics = []
    now = broker.now_ms()
    for data in request.topic_data:
        if version >= 13:
            topic = broker.topic_by_id(data.topic_id)
            missing = errors.UNKNOWN_TOPIC_ID
        else:
            topic = broker.log.topics.get(data.name)
            missing = errors.UNKNOWN_TOPIC_OR_PARTITION
        results = []
        for part in data.partition_data:
            if acks not in (-1, 0, 1):
                result = PartitionProduceResponse(part.index, errors.INVALID_REQUIRED_ACKS, -1)
            elif topic is None or not 0 <= part.index < len(topic.partitions):
                result = PartitionProduceResponse(part.index, missing, -1)
            elif part.records is None or not len(part.records):
                result = PartitionProduceResponse(part.index, errors.INVALID_RECORD, -1, error_message="no records")
            elif topic.internal:
                result = PartitionProduceResponse(part.index, errors.INVALID_TOPIC_EXCEPTION, -1)
            elif code := _check_transaction(broker, transactional_id, topic, part, version):
                result = PartitionProduceResponse(part.index, code, -1)
            else:
                result = _append(topic, part.index, part.records, now, unsynced)
            failed = failed or result.error_code
            results.append(result)
        topics.append(TopicProduceResponse(data.name, data.topic_id, results))
    response = ProduceResponse(topics)
    if acks == 0:
        if failed:
            raise ProtocolError(f"a produce request without acknowledgement failed: {errors.name(failed)}")
        return None
    if unsynced:
        return broker.flusher.after(unsynced, response, _not_flushed)
    return response


def _check_transaction(
    broker: "Broker", transactional_id: str | None, topic: "Topic", part: PartitionProduceData, version: int
) -> int:
    """The error code of a batch that must not be appended for its transaction's sake."""
    batch = part.records
    if len(batch) <= HEADER_SIZE:
        return 0  # the log says what is wrong with it
    if int.from_bytes(batch[8:12], "big") + OVERHEAD < len(batch):
        return errors.INVALID_RECORD  # clients send one batch per partition; Kafka refuses more, too
    if not batch[22] & TRANSACTIONAL:
        return 0
    if transactional_id is None:
        return errors.INVALID_TXN_STATE  # nobody could end it
    return broker.transactions.check_produce(transactional_id, (topic.name, part.index), batch, version)


def _append(
    topic: "Topic", index: int, batches: memoryview, now: int, unsynced: "list[Partition]"
) -> PartitionProduceResponse:
    partition = topic.partitions[index]
    try:
        appended = partition.append(batches, now)
    except LogError as e:
        record_errors = [BatchIndexAndErrorMessage(0, str(e))] if e.code == errors.INVALID_RECORD else []
        return PartitionProduceResponse(index, e.code, -1, -1, -1, record_errors, str(e))
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
