"""Runs the transactions: stores their state, writes the markers, ends what takes too long.

Everything happens on the event loop. The end of a transaction is decided when its Prepare state is in
``__transaction_state``; markers that cannot be written then (a full disk, a restart) are written later.
"""

import asyncio
import logging
import struct
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.internal_topics import InternalTopic
from millstream.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.transactions import records
from millstream.broker.transactions.transaction import PREPARED, Effect, State, Store, Transaction, Where
from millstream.broker.transactions.turns import Turns
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.protocol.records import build_marker

if TYPE_CHECKING:
    from millstream.broker.broker import Broker

logger = logging.getLogger(__name__)
# After markers could not be written, so long until the next try.
RETRY_SECONDS = 1.0
# How often transactional ids that nobody uses are looked for.
EXPIRY_SECONDS = 3600.0
# There is one coordinator; Kafka's epoch of the partition leader has no meaning here.
COORDINATOR_EPOCH = 0
# Transaction version 2 begins with these versions (KIP-890).
PRODUCE_ADDS = 12
OFFSET_COMMIT_ADDS = 5
END_RAISES = 5
PRODUCER = struct.Struct(">qh")
PRODUCER_AT = 43  # in a record batch


class TransactionCoordinator:
    """All transactional ids of the broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings = broker.settings
        self.store = InternalTopic(
            broker.log,
            TRANSACTIONS_TOPIC,
            broker.settings.integer("transaction.state.log.num.partitions"),
            broker.settings.integer("transaction.state.log.segment.bytes"),
        )
        self.transactions: dict[str, Transaction] = {}
        self.turns = Turns()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._expiry: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild the transactions and settle those whose end was decided."""
        for record in self.store.replay():
            if record.type != records.TRANSACTION:
                continue
            transactional_id, transaction = records.read(record)
            if transaction is None:
                self.transactions.pop(transactional_id, None)
            else:
                self.transactions[transactional_id] = transaction
        for transaction in self.transactions.values():
            if transaction.state in PREPARED:
                logger.info("transaction %s: its end was decided, finishing it", transaction.id)
                self._run(transaction, transaction.resume())
            self._watch(transaction)
        self._expiry = self._broker.loop.call_later(EXPIRY_SECONDS, self._expire_ids)

    def close(self) -> None:
        """End the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._expiry is not None:
            self._expiry.cancel()

    # ---- effects

    def _run(self, transaction: Transaction, effects: list[Effect]) -> bool:
        """Carry out effects; whether all could be (markers that cannot be written are tried again later)."""
        for effect in effects:
            if isinstance(effect, Store):
                if not self._write(transaction):
                    return False
                continue
            now = self._broker.now_ms()
            for where in effect.partitions:
                if self._mark(where, effect.producer_id, effect.epoch, effect.commit, now):
                    self._run(transaction, transaction.marked(where, now))
            if transaction.state in PREPARED:
                self._broker.loop.call_later(RETRY_SECONDS, self._retry, transaction.id)
        self._watch(transaction)
        return True

    def _write(self, transaction: Transaction) -> bool:
        try:
            self.store.write(transaction.id, [records.write(transaction)], self._broker.now_ms())
        except LogError as e:
            logger.error("transaction %s could not be stored: %s", transaction.id, e)
            return False
        return True

    def _mark(self, where: Where, producer_id: int, epoch: int, commit: bool, now: int) -> bool:
        """Write one marker; whether it is there (or not needed any more)."""
        topic = self._broker.log.topics.get(where[0])
        if topic is None or where[1] >= len(topic.partitions):
            return True
        marker = build_marker(producer_id, epoch, commit=commit, coordinator_epoch=COORDINATOR_EPOCH, timestamp=now)
        try:
            topic.partitions[where[1]].append(marker, now, internal=True)
        except LogError as e:
            if e.code in (errors.INVALID_PRODUCER_EPOCH, errors.TRANSACTION_COORDINATOR_FENCED):
                logger.warning("transaction marker for %s-%d of producer %d: %s", *where, producer_id, e)
                return True  # a later end is there already
            logger.error("transaction marker for %s-%d of producer %d: %s", *where, producer_id, e)
            return False
        if where[0] == OFFSETS_TOPIC:
            self._broker.groups.transaction_ended(producer_id, commit, where[1])
        return True

    def _retry(self, transactional_id: str) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None:
            self._run(transaction, transaction.resume())

    def _watch(self, transaction: Transaction) -> None:
        """Have a timer for an ongoing transaction, and none for any other."""
        timer = self._timers.pop(transaction.id, None)
        if timer is not None:
            timer.cancel()
        if transaction.state is State.ONGOING:
            left = (transaction.started + transaction.timeout_ms - self._broker.now_ms()) / 1000
            self._timers[transaction.id] = self._broker.loop.call_later(max(left, 0), self._timed_out, transaction.id)

    def _timed_out(self, transactional_id: str) -> None:
        self._timers.pop(transactional_id, None)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return
        effects = transaction.expire(self._broker.now_ms())
        if effects:
            logger.info("transaction %s took more than %d ms: aborted", transactional_id, transaction.timeout_ms)
            self._run(transaction, effects)
        else:
            self._watch(transaction)

    def _expire_ids(self) -> None:
        """Forget transactional ids that were not used for transactional.id.expiration.ms."""
        cutoff = self._broker.now_ms() - self._settings.integer("transactional.id.expiration.ms")
        for transaction in list(self.transactions.values()):
            if transaction.updated >= cutoff or transaction.state is State.ONGOING or transaction.state in PREPARED:
                continue
            try:
                self.store.write(transaction.id, [records.removal(transaction.id)], self._broker.now_ms())
            except LogError as e:
                logger.error("transaction %s could not be removed: %s", transaction.id, e)
                break
            del self.transactions[transaction.id]
        self._expiry = self._broker.loop.call_later(EXPIRY_SECONDS, self._expire_ids)

    # ---- requests

    def init(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        """InitProducerId with a transactional id."""
        transactional_id = request.transactional_id
        timeout = request.transaction_timeout_ms
        if not transactional_id:
            return InitProducerIdResponse(0, errors.INVALID_REQUEST, -1, -1)
        if not 0 < timeout <= self._settings.integer("transaction.max.timeout.ms"):
            return InitProducerIdResponse(0, errors.INVALID_TRANSACTION_TIMEOUT, -1, -1)
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return InitProducerIdResponse(0, errors.INVALID_REQUEST, -1, -1)
        now = self._broker.now_ms()
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if len(self.transactions) >= limits.MAX_TRANSACTIONAL_IDS:
                logger.error("there are %d transactional ids: no more are taken", limits.MAX_TRANSACTIONAL_IDS)
                return InitProducerIdResponse(0, errors.POLICY_VIOLATION, -1, -1)
            transaction = Transaction(transactional_id, self._broker.log.next_producer_id(), 0, timeout, updated=now)
            if not self._write(transaction):
                return InitProducerIdResponse(0, errors.COORDINATOR_NOT_AVAILABLE, -1, -1)
            self.transactions[transactional_id] = transaction
            return InitProducerIdResponse(0, 0, transaction.producer_id, transaction.epoch)
        error, effects = transaction.init(
            request.producer_id, request.producer_epoch, timeout, self._new_id(transaction), now
        )
        if effects and not self._run(transaction, effects):
            return InitProducerIdResponse(0, errors.COORDINATOR_NOT_AVAILABLE, -1, -1)
        if error:
            return InitProducerIdResponse(0, self.epoch_error(error, version, 4), -1, -1)
        return InitProducerIdResponse(0, 0, transaction.producer_id, transaction.epoch)

    def _new_id(self, transaction: Transaction) -> int:
        """A producer id in case the epochs run out; most of the time none is needed."""
        return self._broker.log.next_producer_id() if transaction.epoch >= 0x7FFF - 2 else -1

    @staticmethod
    def epoch_error(error: int, version: int, since: int) -> int:
        """Older clients know INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
        return errors.INVALID_PRODUCER_EPOCH if error == errors.PRODUCER_FENCED and version < since else error

    def add(self, transactional_id: str, producer_id: int, epoch: int, partitions: set[Where], version: int = 0) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn; the error code."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING
        error, effects = transaction.add(producer_id, epoch, partitions, self._broker.now_ms(), version)
        if effects and not self._run(transaction, effects):
            return errors.COORDINATOR_NOT_AVAILABLE
        return error

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partitions: set[Where]) -> int:
        """Whether the transaction is open and holds the partitions; the error code."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING
        return transaction.holds(producer_id, epoch, partitions)

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> tuple[int, int, int]:
        """EndTxn; the error code, and the id and epoch that the producer goes on with (version 5)."""
        if not transactional_id:
            return errors.INVALID_REQUEST, -1, -1
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING, -1, -1
        raises = version >= END_RAISES
        error, effects = transaction.end(
            producer_id, epoch, commit, self._new_id(transaction), self._broker.now_ms(), raises
        )
        if effects and not self._run(transaction, effects):
            return errors.COORDINATOR_NOT_AVAILABLE, -1, -1
        if error:
            return self.epoch_error(error, version, 2), -1, -1
        if transaction.state in PREPARED:  # markers follow; what the producer goes on with is decided
            going_on = transaction.next_producer_id if transaction.next_producer_id >= 0 else transaction.producer_id
            return 0, going_on, transaction.next_epoch if transaction.next_epoch >= 0 else transaction.epoch
        return 0, transaction.producer_id, transaction.epoch

    def check_produce(self, transactional_id: str, where: Where, batch: memoryview, version: int) -> int:
        """Whether a transactional batch may be appended; adds the partition for clients of version 2. The error code."""
        if len(batch) < PRODUCER_AT + PRODUCER.size:
            return errors.CORRUPT_MESSAGE
        return self._admit(transactional_id, PRODUCER.unpack_from(batch, PRODUCER_AT), where, version - PRODUCE_ADDS)

    def check_offset_commit(self, transactional_id: str, producer: tuple[int, int], where: Where, version: int) -> int:
        """The same for the offsets that a transaction commits to a partition of the offsets topic. The error code."""
        return self._admit(transactional_id, producer, where, version - OFFSET_COMMIT_ADDS)

    def _admit(self, transactional_id: str, producer: tuple[int, int], where: Where, newer: int) -> int:
        """``newer``: how many versions the request is beyond the one with which partitions join by being written to.

        The codes are those of Kafka's AddPartitionsToTxnManager: the version before knows TRANSACTION_ABORTABLE.
        """
        if newer >= 0:
            error = self.add(transactional_id, *producer, {where}, 2)
        else:
            error = self.verify(transactional_id, *producer, {where})
        if error == errors.PRODUCER_FENCED:
            return errors.INVALID_PRODUCER_EPOCH
        return errors.TRANSACTION_ABORTABLE if error == errors.INVALID_TXN_STATE and newer >= -1 else error

    def topic_deleted(self, name: str) -> None:
        """Open transactions need not end in a topic that is gone."""
        for transaction in self.transactions.values():
            if transaction.state not in PREPARED:
                transaction.forget_topic(name)
