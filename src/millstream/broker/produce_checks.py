"""Why a batch may not be appended, besides what is wrong with it (log/validation.py): Kafka's checks in Kafka's order.

Each check looks at one partition of a request, and gives the answer of the first that refuses it. Some of Kafka's order is
visible: which code a client gets when several things are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from millstream.broker.security.acls import Operation, Resource
from millstream.broker.transactions.coordinator import PRODUCE_ADDS
from millstream.protocol import errors
from millstream.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest
from millstream.protocol.records import CODEC_MASK, HEADER_SIZE, MAGIC, OVERHEAD, TRANSACTIONAL

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import LogError, Partition, Topic
    from millstream.log.validation import Prepared

TOPIC_IDS: Final = 13
"""The first version that names topics by id."""
ACKS: Final = (-1, 0, 1)
LEAST_BATCH: Final = 17
"""Fewer bytes are no beginning of a batch of any format."""
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
_PRODUCER_AT: Final = 43
_producer: Final = Struct(">qhi").unpack_from
# Size of a batch behind its first twelve bytes. Unsigned: a negative one is announced by garbage, and too large as well.
_announced: Final = Struct(">8xI").unpack_from


class Context:
    """A request, and what is the same for all its partitions."""

    def __init__(self, broker: Broker, connection: Connection, request: ProduceRequest, version: int) -> None:
        self.broker = broker
        self.connection = connection
        self.request = request
        self.version = version
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.missing = errors.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS else errors.UNKNOWN_TOPIC_OR_PARTITION
        self.inside = _has_transaction(request)
        self.forbidden = self.inside and (
            request.transactional_id is None
            or not connection.may(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        )


def _has_transaction(request: ProduceRequest) -> bool:
    """Whether a partition's first batch is in a transaction; the request must name it (RequestUtils.hasTransactionalRecords)."""
    for topic in request.topic_data:
        for part in topic.partition_data:
            batch = part.records
            if batch is not None and len(batch) > HEADER_SIZE and transactional(batch) and not cut_short(batch):
                return bool(batch[_MAGIC_AT] == MAGIC)
    return False


class Entry:
    """One partition of a request. `prepared`: its batch when it was checked before, or what is wrong with it."""

    __slots__ = ("denied", "part", "prepared", "topic")

    def __init__(
        self, topic: Topic | None, denied: bool, part: PartitionProduceData, prepared: Prepared | LogError | None
    ) -> None:
        self.topic = topic
        self.denied = denied
        self.part = part
        self.prepared = prepared

    @property
    def where(self) -> tuple[str, int]:
        """Topic and number of the partition, which is there."""
        assert self.topic is not None
        return self.topic.name, self.part.index

    @property
    def partition(self) -> Partition:
        """The partition, which is there."""
        assert self.topic is not None
        return self.topic.partitions[self.part.index]

    @property
    def whole(self) -> bool:
        """Whether the partition is there, and its bytes begin with a whole batch."""
        batch = self.part.records
        found = self.topic is not None and 0 <= self.part.index < len(self.topic.partitions)
        return found and batch is not None and len(batch) > HEADER_SIZE and not cut_short(batch)

    def refused(self, code: int, message: str | None = None, start: int = -1) -> PartitionProduceResponse:
        """The answer that nothing was appended."""
        return PartitionProduceResponse(
            index=self.part.index,
            error_code=code,
            base_offset=-1,
            log_start_offset=start,
            error_message=message,
        )


Check = Callable[["Context", Entry], PartitionProduceResponse | None]


def transactional_id_denied(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """KafkaApis.handleProduceRequest: a request with a transaction names its id, and may write with it."""
    return entry.refused(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED) if context.forbidden else None


def topic_denied(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """KafkaApis.handleProduceRequest."""
    return entry.refused(errors.TOPIC_AUTHORIZATION_FAILED) if entry.denied else None


def topic_missing(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """KafkaApis.handleProduceRequest."""
    return entry.refused(context.missing) if entry.topic is None else None


def partition_missing(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ReplicaManager.getPartitionOrError."""
    assert entry.topic is not None
    if 0 <= entry.part.index < len(entry.topic.partitions):
        return None
    return entry.refused(errors.UNKNOWN_TOPIC_OR_PARTITION)


def records_missing(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ProduceRequest.validateRecords."""
    if entry.part.records is not None and len(entry.part.records):
        return None
    return entry.refused(errors.INVALID_RECORD, "no records")


def topic_internal(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ReplicaManager.appendRecordsToLeader."""
    assert entry.topic is not None
    return entry.refused(errors.INVALID_TOPIC_EXCEPTION) if entry.topic.internal else None


def batch_cut_short(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ProduceRequest.validateRecords: there is at least one batch."""
    return entry.refused(errors.INVALID_RECORD, "no whole batch") if cut_short(entry.part.records) else None


def acks_unknown_before_a_rest(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ReplicaManager.appendRecords: ahead of the transaction when what follows the batch is too short to be one."""
    if context.acks in ACKS or not 0 < behind(entry.part.records) < LEAST_BATCH:
        return None
    return entry.refused(errors.INVALID_REQUIRED_ACKS)


def transaction_refused(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ProduceRequest.validateRecords (one batch per partition), then AddPartitionsToTxnManager."""
    batch = entry.part.records
    if len(batch) <= HEADER_SIZE:
        return None  # the log says what is wrong with it
    if behind(batch) > 0:
        return entry.refused(errors.INVALID_RECORD)
    if context.transactional_id is None or not transactional(batch):
        return None
    transactions = context.broker.transactions
    code = transactions.check_produce(context.transactional_id, entry.where, batch, context.version)
    return entry.refused(code) if code else None


def acks_unknown(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ReplicaManager.appendRecords."""
    if context.acks in ACKS or not one_batch(entry.part.records):
        return None
    return entry.refused(errors.INVALID_REQUIRED_ACKS)


def out_of_turn(context: Context, entry: Entry) -> PartitionProduceResponse | None:
    """ProducerAppendInfo.checkSequence: one that was refused comes first; a transaction of version 2 begins with 0."""
    turns = context.broker.transactions.turns
    if not context.inside and not turns:
        return None
    batch, partition = entry.part.records, entry.partition
    producer_id, _, sequence = _producer(batch, _PRODUCER_AT)
    begins = context.version >= PRODUCE_ADDS and transactional(batch) and sequence > 0
    if turns.early(entry.where, producer_id, sequence) or (begins and producer_id not in partition.producers):
        return entry.refused(errors.OUT_OF_ORDER_SEQUENCE_NUMBER, start=partition.start_offset)
    return None


CHECKS: Final[tuple[Check, ...]] = (
    transactional_id_denied,
    topic_denied,
    topic_missing,
    partition_missing,
    records_missing,
    topic_internal,
    batch_cut_short,
    acks_unknown_before_a_rest,
    transaction_refused,
    acks_unknown,
    out_of_turn,
)


def note(context: Context, entry: Entry, code: int) -> None:
    """Remember that a batch of a transaction was refused, or that it was taken: see `out_of_turn`."""
    batch = entry.part.records
    if context.forbidden or entry.denied or not entry.whole or not transactional(batch):
        return
    turns = context.broker.transactions.turns
    producer_id, epoch, sequence = _producer(batch, _PRODUCER_AT)
    if not code:
        turns.taken(entry.where, producer_id)
        return
    known = entry.partition.producers.get(producer_id)
    if known is None or known.transaction_start < 0:
        turns.refused(entry.where, producer_id, epoch, sequence)


def transactional(batch: memoryview) -> bool:
    """Whether a batch, longer than its header, is part of a transaction."""
    return bool(batch[_ATTRIBUTES_AT] & TRANSACTIONAL)


def compressed(batch: memoryview) -> bool:
    """Whether a batch, longer than its header, is compressed."""
    return bool(batch[_ATTRIBUTES_AT] & CODEC_MASK)


def one_batch(batch: memoryview | None) -> bool:
    """Whether a partition's bytes look like one batch; Kafka looks at that before anything else."""
    if batch is None or len(batch) <= HEADER_SIZE or batch[_MAGIC_AT] != MAGIC:
        return False
    return bool(_announced(batch)[0] + OVERHEAD == len(batch))


def behind(batch: memoryview) -> int:
    """How many bytes there are behind the first batch."""
    return len(batch) - int(_announced(batch)[0]) - OVERHEAD


def cut_short(batch: memoryview) -> bool:
    """Whether the first batch ends before its announced end."""
    return len(batch) < HEADER_SIZE or bool(_announced(batch)[0] + OVERHEAD > len(batch))
