"""Produce (key 0), versions 3-13: append record batches.

acks 0 gets no answer (and a closed connection on an error, as in Kafka); 1 and all are the same here: one broker holds
the log. Batches are validated as a whole by the log before a byte is written; idempotent duplicates are answered with
their first offset. A topic whose durability is `commit` is answered after the fsync that covers the batch; many
producers share one, and consumers see it only then; a batch of a transaction waits before it is appended, until it is on
disk that its partition is in the transaction. A compressed batch that takes long to unpack is checked on a thread.
A topic whose `millstream.overload` is `backpressure` slows its producers by throttle times (KIP-219: the answer
goes out at once, then the connection is not read for so long); at its limit appends wait (see `broker/purgatory.py`)
and are answered with REQUEST_TIMED_OUT, which clients try again, when the request's timeout is nearly over.
A client over its `producer_byte_rate` waits in the same way.

Version notes: 3 names the transaction and brings batches of format 2 (older versions and formats are refused), 4 may be
answered with KAFKA_STORAGE_ERROR, 5 tells the start of the log, 6 has its throttle time after the answer (KIP-219), 7 allows
zstd (KIP-110; here any version may send it), 8 names the records that are to blame (KIP-467), 9 is flexible, 10 may name a
new leader (KIP-951; never set: one broker), 11 knows TRANSACTION_ABORTABLE (KIP-890), 12 adds its partitions to the
transaction itself (KIP-890), 13 names topics by id (KIP-516).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from millstream.broker import limits
from millstream.broker.parked import Parked
from millstream.broker.postponed import Answer, Postponed
from millstream.broker.produce_checks import (
    CHECKS,
    TOPIC_IDS,
    Context,
    Entry,
    compressed,
    note,
    one_batch,
    transaction_refused,
    transactional,
)
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.quotas import PRODUCE
from millstream.log import LogError
from millstream.log.validation import Prepared, prepare
from millstream.protocol import errors
from millstream.protocol.compression import MAX_UNCOMPRESSED, TooLarge
from millstream.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition

# Errors of an append that Kafka answers without the start of the log (ReplicaManager.appendToLocalLog).
WITHOUT_START: Final = {
    errors.CORRUPT_MESSAGE,
    errors.MESSAGE_TOO_LARGE,
    errors.RECORD_LIST_TOO_LARGE,
    errors.KAFKA_STORAGE_ERROR,
}


def handle(broker: Broker, connection: Connection, request: ProduceRequest, version: int) -> Answer:
    """Append, and answer when the topic's durability is reached."""
    produce = Produce(broker, connection, request, version)
    return produce.run(counted=broker.quotas.active)


class Produce(Context):
    """One request while it is carried out. `prepared`: its batches where they were checked before, one for each topic."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        request: ProduceRequest,
        version: int,
        prepared: Sequence[Prepared | LogError] = (),
    ) -> None:
        super().__init__(broker, connection, request, version)
        self._prepared = prepared
        self._blocked: list[tuple[Entry, PartitionProduceResponse]] = []
        self._postponed = Postponed()
        self._unsynced: list[Partition] = []
        self._now = broker.now_ms()
        self._throttle = 0
        self._unpack_until = 0.0

    def run(self, counted: bool) -> Answer:
        """Append what can be appended at once. `counted`: whether the request counts against the client's quota."""
        failed = 0
        topics = []
        for number, data in enumerate(self.request.topic_data):
            if self.version >= TOPIC_IDS:
                topic = self.broker.topic_by_id(data.topic_id)
            else:
                topic = self.broker.log.topics.get(data.name)
            name = topic.name if topic is not None else data.name
            denied = bool(name) and not self.connection.may(Operation.WRITE, Resource.TOPIC, name)
            prepared = self._prepared[number] if self._prepared else None
            results = []
            for part in data.partition_data:
                result = self._one(data, Entry(topic, denied, part, prepared))
                failed = failed or result.error_code
                results.append(result)
            topics.append(TopicProduceResponse(data.name, data.topic_id, results))
        throttle = self._throttle
        if counted:
            throttle = max(throttle, self.connection.count(PRODUCE, self.connection.request_size))
        response = ProduceResponse(topics, throttle)
        if throttle:
            self.connection.mute(throttle / 1000)
        answer: Answer
        if self._blocked:
            answer = Parked(self, response, self._blocked, self._append_late, self._when_synced).answer
        elif self.acks == 0:
            if failed:
                raise ProtocolError(f"a produce request without acknowledgement failed: {errors.name(failed)}")
            answer = None
        else:
            answer = self._when_synced(response)
        return self._postponed.start(self, answer, self._again) if self._postponed else answer

    def _again(self, rest: ProduceRequest, prepared: list[Prepared | LogError]) -> Answer:
        """Append what was postponed."""
        return Produce(self.broker, self.connection, rest, self.version, prepared).run(counted=False)

    def _when_synced(self, response: ProduceResponse) -> ProduceResponse | asyncio.Future[ProduceResponse]:
        """The answer, when what was appended is as safe as its topics want it."""
        return self.broker.flusher.answer(self._unsynced, response, _not_flushed)

    def _one(self, data: TopicProduceData, entry: Entry) -> PartitionProduceResponse:
        for check in CHECKS:
            result = check(self, entry)
            if result is not None:
                break
        else:
            waits_for = self._waits_for(entry)
            prepared = None if waits_for else self._checked(entry)
            if prepared is None:
                result = PartitionProduceResponse(entry.part.index, error_code=0, base_offset=-1)
                self._postponed.add(data, entry, result, waits_for)
                return result
            result = self._take(entry, prepared)
        if self.inside:
            note(self, entry, result.error_code)
        return result

    def _waits_for(self, entry: Entry) -> list[Partition]:
        """What must be synced before a batch of a transaction may be appended."""
        if not self.inside or self.transactional_id is None or not transactional(entry.part.records):
            return []
        return self.broker.transactions.unsynced(self.transactional_id, (entry.where[0],))

    def _checked(self, entry: Entry) -> Prepared | LogError | None:
        """The batch, checked; what is wrong with it; None when that would take long."""
        if entry.prepared is not None:
            return entry.prepared
        partition = entry.partition
        config = partition.topic.config
        room = MAX_UNCOMPRESSED
        if compressed(entry.part.records) or config.codec:
            now = monotonic()
            self._unpack_until = self._unpack_until or now + limits.TURN_SECONDS
            room = limits.UNPACK_BYTES if now < self._unpack_until else 0
        try:
            return prepare(entry.part.records, config, self._now, partition.name, room=room)
        except TooLarge:
            return None
        except LogError as error:
            return error

    def _take(self, entry: Entry, prepared: Prepared | LogError) -> PartitionProduceResponse:
        topic = entry.partition.topic
        if topic.config.overload != "backpressure" or isinstance(prepared, LogError):
            return self._append(entry, prepared)
        verdict = self.broker.purgatory.verdict(entry.partition)
        if verdict.blocked:
            result = PartitionProduceResponse(entry.part.index, error_code=0, base_offset=-1)
            # A copy, because the request's own bytes are read over.
            copied = PartitionProduceData(entry.part.index, memoryview(bytearray(entry.part.records)))
            self._blocked.append((Entry(entry.topic, False, copied, prepared.copy()), result))
            return result
        self._throttle = max(self._throttle, verdict.throttle_ms)
        topic.overload.throttled_requests += verdict.throttle_ms > 0
        topic.overload.throttled_ms += verdict.throttle_ms
        return self._append(entry, prepared)

    def _append_late(self, entry: Entry) -> PartitionProduceResponse:
        """Append what waited for consumers: the transaction may have ended meanwhile."""
        assert entry.prepared is not None
        self._now = self.broker.now_ms()
        return transaction_refused(self, entry) or self._append(entry, entry.prepared)

    def _append(self, entry: Entry, prepared: Prepared | LogError) -> PartitionProduceResponse:
        partition = entry.partition
        try:
            if isinstance(prepared, LogError):
                raise prepared
            appended = partition.append_prepared(prepared, self._now)
        except LogError as error:
            told = error.code not in WITHOUT_START and (
                error.code != errors.INVALID_RECORD or one_batch(entry.part.records)
            )
            result = entry.refused(error.code, str(error), partition.start_offset if told else -1)
            result.record_errors = [BatchIndexAndErrorMessage(*each) for each in error.records]
            return result
        if partition.topic.config.durability == "commit":
            self._unsynced.append(partition)
        return PartitionProduceResponse(
            index=entry.part.index,
            error_code=0,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.log_append_time,
            log_start_offset=appended.log_start_offset,
        )


def _not_flushed(response: ProduceResponse, failed: dict[Partition, str]) -> ProduceResponse:
    """The answer when an fsync failed: nothing of those partitions is acknowledged."""
    bad = {(p.topic.name, p.index): text for p, text in failed.items()}
    bad_ids = {(p.topic.id.bytes, p.index): text for p, text in failed.items()}
    for topic in response.responses:
        for part in topic.partition_responses:
            text = bad.get((topic.name, part.index)) or bad_ids.get((topic.topic_id, part.index))
            if text and not part.error_code:
                part.error_code, part.base_offset, part.error_message = errors.KAFKA_STORAGE_ERROR, -1, text
    return response
