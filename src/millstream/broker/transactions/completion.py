"""Ends of transactions: the decision is stored, the markers are written, the completion is stored.

When nothing has to survive a power cut, all of it is done when the call returns. A durable transaction (see stored.py) waits
for the disk between these steps; meanwhile it is in a Prepare state, in which it takes no other request. Markers that
cannot be written (a full disk, a partition whose disk has failed) are tried again until they are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.broker import failpoints
from millstream.broker.core import Core
from millstream.broker.groups.commits import Commits
from millstream.broker.topics import OFFSETS_TOPIC
from millstream.broker.transactions.stored import Stored
from millstream.broker.transactions.transaction import PREPARED, Effect, Mark, State, Store, Transaction, Where
from millstream.log import LogError
from millstream.protocol import errors
from millstream.protocol.records import build_marker

if TYPE_CHECKING:
    from millstream.log import Partition

_log = logging.getLogger(__name__)
# After markers could not be written, so long until the next try.
RETRY_SECONDS = 1.0
# There is one coordinator; Kafka's epoch of the partition leader has no meaning here.
COORDINATOR_EPOCH = 0


class Completion:
    """Carries out what the state machines want, and ends what takes too long."""

    def __init__(self, core: Core, groups: Commits) -> None:
        self._core = core
        self._groups = groups
        self.stored = Stored(core, groups)
        self.transactions: dict[str, Transaction] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: dict[str, asyncio.Task[bool]] = {}

    def close(self) -> None:
        """End the timers, and leave what is under way to the next start."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._ending.values():
            task.cancel()

    def carry_out(
        self, transaction: Transaction, effects: Sequence[Effect], before: Transaction
    ) -> bool | asyncio.Task[bool]:
        """Carry out effects; whether all could be, or will have been (but for markers, which come in any case).

        What could not be stored has not happened: the transaction is again as it was `before`.
        """
        if any(isinstance(effect, Mark) for effect in effects) and self.stored.is_durable(transaction):
            task = self._core.loop.create_task(self._end_durably(transaction, isinstance(effects[0], Store), before))
            self._ending[transaction.id] = task
            task.add_done_callback(lambda _: self._ended(transaction.id, task))
            self._watch(transaction)
            return task
        for effect in effects:
            if isinstance(effect, Store):
                if not self._store(transaction, before):
                    return False
            else:
                for where in effect.partitions:
                    if self._mark(where, effect, durable=False):
                        self._marked(transaction, where)
        self._finish(transaction)
        return True

    async def _end_durably(self, transaction: Transaction, undecided: bool, before: Transaction) -> bool:
        """The end of a durable transaction, each step on disk before the next one begins."""
        if undecided:
            commit = transaction.state is State.PREPARE_COMMIT
            if commit and not await self._sync(self.stored.before_decision(transaction)):
                self._take_back(transaction, before)
                return False
            failpoints.reach(failpoints.RECORDS_SYNCED)
            if not self._store(transaction, before):
                return False
        if not await self._sync(self.stored.behind(transaction, transaction.stored)):
            return False  # whether it is decided turns out when the log is opened again; until then it is in doubt
        failpoints.reach(failpoints.PREPARED_SYNCED)
        for mark in transaction.resume():
            written = [where for where in mark.partitions if self._mark(where, mark, durable=True)]
            failpoints.reach(failpoints.MARKED)
            partitions = {where: self.stored.partition(where) for where in written}
            failed = await self._core.flusher.synced([each for each in partitions.values() if each is not None])
            failpoints.reach(failpoints.MARKED_SYNCED)
            for where, partition in partitions.items():
                if partition is None or partition not in failed:
                    self._marked(transaction, where)
        if transaction.state not in PREPARED:
            transaction.ahead = transaction.stored
        self._finish(transaction)
        return True

    async def _sync(self, partitions: list[Partition]) -> bool:
        return not partitions or not await self._core.flusher.synced(partitions)

    def _store(self, transaction: Transaction, before: Transaction) -> bool:
        if not self.stored.write(transaction):
            self._take_back(transaction, before)
            return False
        if transaction.state in PREPARED:
            failpoints.reach(failpoints.PREPARED)
        return True

    def _take_back(self, transaction: Transaction, before: Transaction) -> None:
        transaction.restore(before)
        self._watch(transaction, RETRY_SECONDS)

    def _mark(self, where: Where, mark: Mark, *, durable: bool) -> bool:
        """Write one marker; whether it is there (or not needed any more)."""
        partition = self.stored.partition(where)
        if partition is None:
            return True
        now = self._core.now_ms()
        marker = build_marker(
            mark.producer_id, mark.epoch, commit=mark.commit, coordinator_epoch=COORDINATOR_EPOCH, timestamp=now
        )
        try:
            partition.append(marker, now, internal=True)
        except LogError as e:
            if e.code in (errors.INVALID_PRODUCER_EPOCH, errors.TRANSACTION_COORDINATOR_FENCED):
                _log.warning("transaction marker for %s-%d of producer %d: %s", *where, mark.producer_id, e)
                return True  # a later end is there already
            _log.error("transaction marker for %s-%d of producer %d: %s", *where, mark.producer_id, e)
            return False
        failpoints.reach(failpoints.MARKED_ONE)
        if where[0] == OFFSETS_TOPIC:
            self._groups.transaction_ended(mark.producer_id, mark.commit, where[1], durable=durable)
        return True

    def _marked(self, transaction: Transaction, where: Where) -> None:
        if transaction.marked(where, self._core.now_ms()):
            # If it cannot be stored, the markers are written again after a restart.
            self.stored.write(transaction)
            failpoints.reach(failpoints.COMPLETED)

    def _finish(self, transaction: Transaction) -> None:
        """Try again what is not done, or have a timer for what is open."""
        if transaction.state in PREPARED:
            self._core.loop.call_later(RETRY_SECONDS, self._retry, transaction.id)
        self._watch(transaction)

    def _retry(self, transactional_id: str) -> None:
        transaction = self.transactions.get(transactional_id)
        # One that is ending by now is a later one, whose decision need not be stored yet.
        if transaction is not None and transactional_id not in self._ending:
            self.carry_out(transaction, transaction.resume(), transaction.copy())

    def _ended(self, transactional_id: str, task: asyncio.Task[bool]) -> None:
        del self._ending[transactional_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the end of a transaction failed in the broker", exc_info=error)

    # ---- timeouts

    def _watch(self, transaction: Transaction, least: float = 0.0) -> None:
        """Have a timer for an ongoing transaction, and none for any other."""
        timer = self._timers.pop(transaction.id, None)
        if timer is not None:
            timer.cancel()
        if transaction.state is State.ONGOING:
            left = (transaction.started + transaction.timeout_ms - self._core.now_ms()) / 1000
            self._timers[transaction.id] = self._core.loop.call_later(max(left, least), self._timed_out, transaction.id)

    def _timed_out(self, transactional_id: str) -> None:
        self._timers.pop(transactional_id, None)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return
        before = transaction.copy()
        effects = transaction.expire(self._core.now_ms())
        if effects:
            _log.info("transaction %s took more than %d ms: aborted", transactional_id, transaction.timeout_ms)
            self.carry_out(transaction, effects, before)
        else:
            self._watch(transaction)
