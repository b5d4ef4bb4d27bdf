"""Where the states of transactions are kept, and what must be on disk before the next step of one may be taken.

A power cut may leave of each file what was synced, and any part of what came after. So that it undoes nothing, the log
of states is always ahead of the partitions: what it says is synced before what follows from it is written anywhere else.

1. A producer's epoch is synced before it is answered, if the broker has any topic that is `commit`.
2. That a `commit` partition is in a transaction is synced before anything of the transaction is written there. The same
   goes for offsets of `commit` topics, which a transaction writes to `__consumer_offsets`.
3. A transaction is *durable* if one of its partitions, or a topic whose offsets it commits, is `commit`. All of its
   partitions then take part, whatever their own durability: before its end is decided its records are synced, then the
   decision, then the markers. Then it is answered. A cut leaves it undecided (it is aborted when its producer or its
   timeout asks for that) or decided (the markers are written again, which does no harm).
4. Its completion need not be synced: without it the markers are written again. Anywhere they could meet the next
   transaction, that one's beginning is synced first (rule 2; for partitions that are not `commit`: `Transaction.ahead`).

Transactions among other topics cost what they did: nothing waits for the disk. A cut may leave one open in a partition that
the coordinator does not know of; it is aborted before the partition joins the next one of its producer, which would commit it.
`__transaction_state` itself being `commit` (by its own setting or the broker's default) makes every transaction durable.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.broker.core import Core
from millstream.broker.groups.commits import Commits
from millstream.broker.internal_topics import InternalTopic
from millstream.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.transactions import records
from millstream.log import LogError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millstream.broker.transactions.transaction import Transaction, Where
    from millstream.log import Partition

_log = logging.getLogger(__name__)


class Stored:
    """The log of the transactions' states."""

    def __init__(self, core: Core, groups: Commits) -> None:
        self._core = core
        self._groups = groups
        self.topic = InternalTopic(
            core.log,
            TRANSACTIONS_TOPIC,
            core.settings.integer("transaction.state.log.num.partitions"),
            core.settings.integer("transaction.state.log.segment.bytes"),
        )

    def load(self) -> dict[str, Transaction]:
        """Every transaction as it was stored last. What a killed broker wrote need not be synced yet."""
        found: dict[str, Transaction] = {}
        for record in self.topic.replay():
            if record.type != records.TRANSACTION:
                continue
            transactional_id, transaction = records.read(record)
            if transaction is None:
                found.pop(transactional_id, None)
            else:
                found[transactional_id] = transaction
        has_commit = self._core.log.has_commit
        for transaction in found.values():
            transaction.stored = self.topic.partition(transaction.id).end_offset
            transaction.ahead = transaction.stored if has_commit else 0
        return found

    def write(self, transaction: Transaction) -> bool:
        """Store the state as it is now; whether it could be."""
        try:
            transaction.stored = self.topic.write(transaction.id, [records.write(transaction)], self._core.now_ms())
        except LogError as e:
            _log.error("transaction %s could not be stored: %s", transaction.id, e)
            return False
        return True

    def remove(self, transaction: Transaction) -> bool:
        """Forget a transactional id; whether it could be."""
        try:
            self.topic.write(transaction.id, [records.removal(transaction.id)], self._core.now_ms())
        except LogError as e:
            _log.error("transaction %s could not be removed: %s", transaction.id, e)
            return False
        return True

    # ---- what must be synced

    def is_durable(self, transaction: Transaction) -> bool:
        """Whether the end of a transaction must survive a power cut, in all of its partitions."""
        names = {name for name, _ in transaction.partitions}
        if self.topic.must_survive(names):
            return True
        return OFFSETS_TOPIC in names and self.topic.must_survive(self._groups.pending_topics(transaction.producer_id))

    def behind(self, transaction: Transaction, offset: int) -> list[Partition]:
        """What has to be synced until the log of states is safe up to an offset, one of the transaction's."""
        if not offset:
            return []
        partition = self.topic.partition(transaction.id)
        return [partition] if partition.flushed_offset < offset else []

    def before_append(self, transaction: Transaction, topics: Iterable[str]) -> list[Partition]:
        """What has to be synced before an open transaction writes to topics, or commits offsets of them (rules 2 and 4)."""
        return self.behind(transaction, transaction.stored if self.topic.must_survive(topics) else transaction.ahead)

    def before_decision(self, transaction: Transaction) -> list[Partition]:
        """The partitions with records of a transaction that are not synced (rule 3)."""
        found = []
        for where in transaction.partitions:
            partition = self.partition(where)
            if partition is not None:
                producer = partition.producers.get(transaction.producer_id)
                if producer is not None and producer.last_offset >= partition.flushed_offset:
                    found.append(partition)
        return found

    def partition(self, where: Where) -> Partition | None:
        """A partition of the log, if it is still there."""
        topic = self._core.log.topics.get(where[0])
        return topic.partitions[where[1]] if topic is not None and where[1] < len(topic.partitions) else None
