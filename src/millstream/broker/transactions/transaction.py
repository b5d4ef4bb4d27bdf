"""One transactional id as a pure state machine: events in (with the time), an error code and effects out.

Transaction version 1: a producer names each partition before it writes there (AddPartitionsToTxn), its epoch rises only
when it starts again. Version 2 (KIP-890): partitions join by being written to, and every end raises the epoch, so that a
straggler of one transaction cannot slip into the next. A client of version 2 ends with EndTxn version 5.

Source: Kafka's TransactionCoordinator and TransactionMetadata; KIP-98, KIP-360, KIP-588, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum

from millstream.protocol import errors

Where = tuple[str, int]  # topic, partition
# The last epoch is kept for fencing; a producer that reaches it gets a new id.
LAST_EPOCH = 0x7FFF - 1


class State(Enum):
    """With the numbers that `__transaction_state` stores and the names that DescribeTransactions shows."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")

    @property
    def number(self) -> int:
        """As stored."""
        return self.value[0]

    @property
    def title(self) -> str:
        """As shown."""
        return self.value[1]


BY_NUMBER = {state.number: state for state in State}
PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
COMPLETED = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True)
class Store:
    """Write the transaction's state before anything that follows."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Write a commit or abort marker of this producer into these partitions; report each with `marked`."""

    commit: bool
    producer_id: int
    epoch: int
    partitions: tuple[Where, ...]


Effect = Store | Mark


@dataclass(slots=True)
class Transaction:
    """State of a transactional id. Times are epoch milliseconds, -1: none."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    previous_producer_id: int = -1  # before the last change of id, for retries
    last_epoch: int = -1  # before the last rise, for retries
    partitions: set[Where] = field(default_factory=set)
    started: int = -1
    updated: int = -1
    version: int = 0
    # What the markers of a prepared end carry, and the id that the producer continues with (-1: the same).
    next_producer_id: int = -1
    next_epoch: int = -1
    # Where the coordinator has stored it (Stored): offsets of `__transaction_state`, not part of the state.
    stored: int = field(default=0, compare=False)
    ahead: int = field(default=0, compare=False)

    def copy(self) -> Transaction:
        """The state as it is now, for `restore`."""
        return replace(self, partitions=set(self.partitions))

    def restore(self, before: Transaction) -> None:
        """Take back what has happened since `copy`: it could not be stored."""
        for each in fields(self):
            setattr(self, each.name, getattr(before, each.name))

    # ---- events

    def init(self, producer_id: int, epoch: int, timeout_ms: int, new_id: int, now: int) -> tuple[int, list[Effect]]:
        """InitProducerId: a producer starts (-1, -1) or continues with the id and epoch that it has.

        An ongoing transaction is aborted, and the client told to ask again (CONCURRENT_TRANSACTIONS). `new_id` is used
        when the epochs run out.
        """
        if self.state in PREPARED:
            return errors.CONCURRENT_TRANSACTIONS, []
        if producer_id >= 0:
            current = producer_id == self.producer_id and epoch == self.epoch
            before = producer_id == self.producer_id or (
                producer_id == self.previous_producer_id and epoch == LAST_EPOCH
            )
            retried = before and epoch == self.last_epoch
            if not current and not retried:
                return errors.PRODUCER_FENCED, []
            if retried and not current and self.state is not State.ONGOING:
                return errors.NONE, []  # its answer was lost
        if self.state is State.ONGOING:
            return errors.CONCURRENT_TRANSACTIONS, self._fence(now)
        self._raise_epoch(new_id)
        if producer_id < 0:
            self.last_epoch = -1  # another producer has taken over: the one before is not given its epoch
        self.timeout_ms = timeout_ms
        self.state = State.EMPTY
        self.partitions.clear()
        self.started, self.updated = -1, now
        return errors.NONE, [Store()]

    def add(
        self, producer_id: int, epoch: int, partitions: set[Where], now: int, version: int = 0
    ) -> tuple[int, list[Effect]]:
        """The transaction (begins and) writes to these partitions."""
        if self._comes_early(producer_id, epoch):
            return errors.CONCURRENT_TRANSACTIONS, []
        if producer_id != self.producer_id:
            return errors.INVALID_PRODUCER_ID_MAPPING, []
        if epoch != self.epoch:
            return errors.PRODUCER_FENCED, []
        if self.state in PREPARED:
            return errors.CONCURRENT_TRANSACTIONS, []
        if self.state is State.ONGOING and partitions <= self.partitions:
            return errors.NONE, []
        if self.state is not State.ONGOING:
            self.state = State.ONGOING
            self.partitions.clear()
            self.started = now
        self.partitions |= partitions
        self.version = max(version, 0)
        self.updated = now
        return errors.NONE, [Store()]

    def holds(self, producer_id: int, epoch: int, partitions: set[Where]) -> int:
        """Whether an ongoing transaction of this producer writes to the partitions; the error code."""
        if producer_id != self.producer_id:
            return errors.INVALID_PRODUCER_ID_MAPPING
        if epoch != self.epoch:
            return errors.PRODUCER_FENCED
        if self.state is not State.ONGOING or not partitions <= self.partitions:
            return errors.INVALID_TXN_STATE
        return errors.NONE

    def end(
        self, producer_id: int, epoch: int, commit: bool, new_id: int, now: int, raise_epoch: bool
    ) -> tuple[int, list[Effect]]:
        """EndTxn; `raise_epoch` for transaction version 2."""
        if self._comes_early(producer_id, epoch):
            return errors.CONCURRENT_TRANSACTIONS, []
        if raise_epoch and self._is_retry(producer_id, epoch):
            if self.state in PREPARED:
                return errors.CONCURRENT_TRANSACTIONS, []
            done = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
            return (errors.NONE if self.state is done else errors.INVALID_TXN_STATE), []
        if producer_id != self.producer_id:
            return errors.INVALID_PRODUCER_ID_MAPPING, []
        if epoch != self.epoch:
            return errors.PRODUCER_FENCED, []
        if self.state in PREPARED:
            wanted = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
            return (errors.CONCURRENT_TRANSACTIONS if self.state is wanted else errors.INVALID_TXN_STATE), []
        if self.state is State.ONGOING:
            return errors.NONE, self._prepare(commit, new_id, now, raise_epoch)
        if raise_epoch:  # an abort of a transaction that wrote nothing
            return (errors.INVALID_TXN_STATE, []) if commit else (errors.NONE, self._prepare(False, new_id, now, True))
        done = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
        return (errors.NONE if self.state is done else errors.INVALID_TXN_STATE), []

    def going_on(self) -> tuple[int, int]:
        """The id and epoch that the producer continues with: known as soon as an end is decided."""
        if self.state in PREPARED:
            producer_id = self.next_producer_id if self.next_producer_id >= 0 else self.producer_id
            return producer_id, self.next_epoch if self.next_epoch >= 0 else self.epoch
        return self.producer_id, self.epoch

    def expire(self, now: int) -> list[Effect]:
        """Abort and fence an ongoing transaction that has taken too long."""
        if self.state is not State.ONGOING or now < self.started + self.timeout_ms:
            return []
        return self._fence(now)

    def resume(self) -> list[Mark]:
        """After a restart, or after markers could not be written: finish a prepared end."""
        return [self._mark()] if self.state in PREPARED else []

    def marked(self, where: Where, now: int) -> list[Effect]:
        """A marker is written (or its partition is gone)."""
        self.partitions.discard(where)
        if self.partitions or self.state not in PREPARED:
            return []
        return self._complete(now)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted; there is nothing to mark there."""
        self.partitions = {where for where in self.partitions if where[0] != topic}

    # ---- inside

    def _comes_early(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer of version 2 continues with the raised epoch while markers are still to be written."""
        return self.state in PREPARED and self.next_epoch >= 0 and (producer_id, epoch) == self.going_on()

    def _is_retry(self, producer_id: int, epoch: int) -> bool:
        """Whether an EndTxn of version 2 comes again after its end was decided, by it or by the coordinator.

        A producer whose transaction was aborted for its age learns so here: its commit is refused, and its abort is
        answered with the raised epoch, with which it may go on (TransactionCoordinator.endTransaction).
        """
        if self.state not in PREPARED and self.state not in COMPLETED:
            return False
        if self.state in PREPARED:
            return producer_id == self.producer_id and epoch == self.epoch
        if producer_id == self.producer_id:
            return epoch == self.epoch - 1
        return producer_id == self.previous_producer_id and epoch == LAST_EPOCH and self.epoch == 0

    def _raise_epoch(self, new_id: int) -> None:
        if self.epoch >= LAST_EPOCH:
            self.previous_producer_id, self.producer_id = self.producer_id, new_id
            self.last_epoch, self.epoch = self.epoch, 0
        else:
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1

    def _fence(self, now: int) -> list[Effect]:
        """Abort what is open with a raised epoch, so that its producer cannot go on with it.

        It may ask for its epoch again and go on, unless another one has come meanwhile (KIP-588).
        """
        if self.epoch < 0x7FFF:
            self.last_epoch, self.epoch = self.epoch, self.epoch + 1
        return self._prepare(False, -1, now, False)

    def _prepare(self, commit: bool, new_id: int, now: int, raise_epoch: bool) -> list[Effect]:
        self.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        self.updated = now
        self.next_producer_id = self.next_epoch = -1
        if raise_epoch:
            # The markers carry the raised epoch: the log then takes nothing more from the old one.
            if self.epoch >= LAST_EPOCH:
                self.next_producer_id, self.next_epoch = new_id, 0
            else:
                self.next_epoch = self.epoch + 1
        if not self.partitions:
            return self._complete(now)
        return [Store(), self._mark()]

    def _mark(self) -> Mark:
        if self.next_producer_id >= 0:
            epoch = 0x7FFF
        else:
            epoch = self.next_epoch if self.next_epoch >= 0 else self.epoch
        return Mark(self.state is State.PREPARE_COMMIT, self.producer_id, epoch, tuple(sorted(self.partitions)))

    def _complete(self, now: int) -> list[Effect]:
        self.state = State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
        if self.next_producer_id >= 0:
            self.previous_producer_id, self.producer_id = self.producer_id, self.next_producer_id
        if self.next_epoch >= 0:
            self.last_epoch, self.epoch = self.epoch, self.next_epoch
        self.next_producer_id = self.next_epoch = -1
        self.partitions.clear()
        self.started, self.updated = -1, now
        return [Store()]
