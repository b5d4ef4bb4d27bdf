"""The transactions of the broker: read back from the log, their requests answered, forgotten when nobody uses them.

Everything happens on the event loop. The end of a transaction is decided when its Prepare state is in
`__transaction_state`; what waits for the disk stands in stored.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, TypeVar

from millstream.broker import failpoints, limits
from millstream.broker.core import Core
from millstream.broker.groups.commits import Commits
from millstream.broker.transactions.completion import Completion
from millstream.broker.transactions.transaction import PREPARED, Mark, State, Transaction, Where
from millstream.broker.transactions.turns import Turns
from millstream.protocol import errors
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.log import Partition

_log = logging.getLogger(__name__)
# How often transactional ids that nobody uses are looked for.
EXPIRY_SECONDS = 3600.0
# Transaction version 2 begins with these versions (KIP-890).
PRODUCE_ADDS = 12
OFFSET_COMMIT_ADDS = 5
END_RAISES = 5
PRODUCER = struct.Struct(">qh")
PRODUCER_AT = 43  # in a record batch
T = TypeVar("T")
Ended = tuple[int, int, int]  # the error code of EndTxn, the id and epoch that the producer continues with


class TransactionCoordinator(Completion):
    """All transactional ids of the broker."""

    def __init__(self, core: Core, groups: Commits) -> None:
        super().__init__(core, groups)
        self.turns = Turns()
        self._expiry: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild the transactions and settle those whose end was decided."""
        self.transactions = self.stored.load()
        for transaction in self.transactions.values():
            if transaction.state in PREPARED:
                _log.info("transaction %s: its end was decided, finishing it", transaction.id)
            self.carry_out(transaction, transaction.resume(), transaction.copy())
        self._expiry = self._core.loop.call_later(EXPIRY_SECONDS, self._expire_ids)

    def close(self) -> None:
        """End the timers, and leave what is under way to the next start."""
        super().close()
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire_ids(self) -> None:
        """Forget transactional ids that were not used for transactional.id.expiration.ms."""
        cutoff = self._core.now_ms() - self._core.settings.integer("transactional.id.expiration.ms")
        for transaction in list(self.transactions.values()):
            if transaction.updated >= cutoff or transaction.state is State.ONGOING or transaction.state in PREPARED:
                continue
            if not self.stored.remove(transaction):
                break
            del self.transactions[transaction.id]
        self._expiry = self._core.loop.call_later(EXPIRY_SECONDS, self._expire_ids)

    # ---- requests

    def init(
        self, request: InitProducerIdRequest, version: int
    ) -> InitProducerIdResponse | asyncio.Future[InitProducerIdResponse]:
        """InitProducerId with a transactional id."""
        transactional_id = request.transactional_id
        timeout = request.transaction_timeout_ms
        if not transactional_id:
            return InitProducerIdResponse(0, errors.INVALID_REQUEST, -1, -1)
        if not 0 < timeout <= self._core.settings.integer("transaction.max.timeout.ms"):
            return InitProducerIdResponse(0, errors.INVALID_TRANSACTION_TIMEOUT, -1, -1)
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            return InitProducerIdResponse(0, errors.INVALID_REQUEST, -1, -1)
        now = self._core.now_ms()
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            if len(self.transactions) >= limits.MAX_TRANSACTIONAL_IDS:
                _log.error("there are %d transactional ids: no more are taken", limits.MAX_TRANSACTIONAL_IDS)
                return InitProducerIdResponse(0, errors.POLICY_VIOLATION, -1, -1)
            transaction = Transaction(transactional_id, self._core.log.next_producer_id(), 0, timeout, updated=now)
            if not self.stored.write(transaction):
                return InitProducerIdResponse(0, errors.COORDINATOR_NOT_AVAILABLE, -1, -1)
            self.transactions[transactional_id] = transaction
        else:
            before = transaction.copy()
            error, effects = transaction.init(
                request.producer_id, request.producer_epoch, timeout, self._new_id(transaction), now
            )
            # An open transaction is aborted on its own; the client asks again until that is done.
            if effects and not self.carry_out(transaction, effects, before):
                return InitProducerIdResponse(0, errors.COORDINATOR_NOT_AVAILABLE, -1, -1)
            if error:
                return InitProducerIdResponse(0, self.epoch_error(error, version, 4), -1, -1)
        failpoints.reach(failpoints.EPOCH_STORED)
        response = InitProducerIdResponse(0, 0, transaction.producer_id, transaction.epoch)
        refused = InitProducerIdResponse(0, errors.COORDINATOR_NOT_AVAILABLE, -1, -1)
        return self._when_known(transaction, response, refused)

    def _when_known(self, transaction: Transaction, response: T, refused: T) -> T | asyncio.Future[T]:
        """An answer that tells an epoch: now, or when it is on disk; `refused` when the disk refuses."""
        if not (self.stored.topic.durable or self._core.log.has_commit):
            return response
        unsynced = self.stored.behind(transaction, transaction.stored)
        return self._core.flusher.answer(unsynced, response, lambda *_: refused)

    def _new_id(self, transaction: Transaction) -> int:
        """A producer id in case the epochs run out; most of the time none is needed."""
        return self._core.log.next_producer_id() if transaction.epoch >= 0x7FFF - 2 else -1

    @staticmethod
    def epoch_error(error: int, version: int, since: int) -> int:
        """Older clients know INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""
        return errors.INVALID_PRODUCER_EPOCH if error == errors.PRODUCER_FENCED and version < since else error

    def add(self, transactional_id: str, producer_id: int, epoch: int, partitions: set[Where], version: int = 0) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn; the error code. On disk when `unsynced` has nothing."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING
        if not transaction.holds(producer_id, epoch, partitions):
            return errors.NONE
        before = transaction.copy()
        error, effects = transaction.add(producer_id, epoch, partitions, self._core.now_ms(), version)
        if effects and not self._end_forgotten(transaction, transaction.partitions - before.partitions):
            transaction.restore(before)
            return errors.COORDINATOR_NOT_AVAILABLE
        if effects and not self.carry_out(transaction, effects, before):
            return errors.COORDINATOR_NOT_AVAILABLE
        if effects:
            failpoints.reach(failpoints.ADDED)
        return error

    def _end_forgotten(self, transaction: Transaction, joining: set[Where]) -> bool:
        """Abort what a producer has open in partitions that are only now to join its transaction; whether that could be.

        A power cut may take the coordinator's memory of a transaction and leave its records (stored.py): the next one's
        commit would commit them as well. One of version 2 that continues joins again, in its own epoch: it continues with them.
        """
        for where in joining:
            partition = self.stored.partition(where)
            known = None if partition is None else partition.producers.get(transaction.producer_id)
            if known is None or known.transaction_start < 0 or known.epoch > transaction.epoch:
                continue
            if known.epoch == transaction.epoch and transaction.version == 2:
                continue
            _log.warning(
                "transaction %s: aborting what an earlier one of its producer %d left open in %s-%d from offset %d on",
                *(transaction.id, transaction.producer_id, *where, known.transaction_start),
            )
            mark = Mark(False, transaction.producer_id, known.epoch, (where,))
            if not self._mark(where, mark, durable=self.stored.is_durable(transaction)):
                return False
        return True

    def unsynced(self, transactional_id: str, topics: Iterable[str]) -> list[Partition]:
        """What has to be synced before a transaction writes to topics, or commits offsets of them, or says that it may."""
        transaction = self.transactions.get(transactional_id)
        return [] if transaction is None else self.stored.before_append(transaction, topics)

    def unsynced_group(self, transactional_id: str, group_id: str) -> list[Partition]:
        """The same before it is said that a transaction may commit offsets of a group, as far as is known of which topics."""
        topics: set[str] = set()
        if self._core.log.has_commit:
            topics = self._groups.topics_of(group_id)
            transaction = self.transactions.get(transactional_id)
            if transaction is not None:
                topics |= {name for name, _ in transaction.partitions}
        return self.unsynced(transactional_id, topics)

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partitions: set[Where]) -> int:
        """Whether the transaction is open and holds the partitions; the error code."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING
        return transaction.holds(producer_id, epoch, partitions)

    def end(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> Ended | asyncio.Future[Ended]:
        """EndTxn."""
        if not transactional_id:
            return errors.INVALID_REQUEST, -1, -1
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return errors.INVALID_PRODUCER_ID_MAPPING, -1, -1
        raises = version >= END_RAISES
        before = transaction.copy()
        error, effects = transaction.end(
            producer_id, epoch, commit, self._new_id(transaction), self._core.now_ms(), raises
        )
        if error:
            return self.epoch_error(error, version, 2), -1, -1
        refused = errors.COORDINATOR_NOT_AVAILABLE, -1, -1
        marks = [effect for effect in effects if isinstance(effect, Mark)]
        # Decided now: by the time of an answer another producer may have come.
        going_on = 0, *transaction.going_on()
        done = not effects or self.carry_out(transaction, effects, before)
        if isinstance(done, asyncio.Future):
            return self._core.answer(done, lambda stored: going_on if stored else refused)
        if not done:
            return refused
        return going_on if marks or not raises else self._when_known(transaction, going_on, refused)

    def check_produce(self, transactional_id: str, where: Where, batch: memoryview, version: int) -> int:
        """Whether a transactional batch may be appended; adds the partition for clients of version 2. The error code."""
        if len(batch) < PRODUCER_AT + PRODUCER.size:
            return errors.CORRUPT_MESSAGE
        return self._admit(transactional_id, PRODUCER.unpack_from(batch, PRODUCER_AT), where, version - PRODUCE_ADDS)

    def check_offset_commit(self, transactional_id: str, producer: tuple[int, int], where: Where, version: int) -> int:
        """The same for the offsets that a transaction commits to a partition of the offsets topic. The error code."""
        return self._admit(transactional_id, producer, where, version - OFFSET_COMMIT_ADDS)

    def _admit(self, transactional_id: str, producer: tuple[int, int], where: Where, newer: int) -> int:
        """`newer`: how many versions the request is beyond the one with which partitions join by being written to.

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
