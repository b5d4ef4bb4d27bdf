"""Whose turn it is after a transactional batch was refused: nothing behind it is taken before it has come again.

A producer has several batches under way. When the first one for a partition is refused for a reason that passes, the
next one must not be taken in its place, although the partition knows nothing of the producer yet. In memory only, as
in Kafka (ProducerStateManager's VerificationStateEntry, ProducerAppendInfo.checkSequence; KIP-890).
"""

from __future__ import annotations

from millstream.broker.transactions.transaction import Where

# Producers that were refused in a partition; at the bound the oldest is forgotten, and with it this protection.
MAX_REFUSED = 10_000


class Turns:
    """The lowest sequence that was refused of each producer in each partition."""

    def __init__(self) -> None:
        self._lowest: dict[tuple[Where, int], tuple[int, int]] = {}  # partition, producer id -> epoch, sequence

    def __bool__(self) -> bool:
        return bool(self._lowest)

    def refused(self, where: Where, producer_id: int, epoch: int, sequence: int) -> None:
        """A batch was refused, in a partition where its producer has no transaction open."""
        known = self._lowest.pop((where, producer_id), None)
        if known is not None and (known[0] > epoch or (known[0] == epoch and known[1] < sequence)):
            epoch, sequence = known
        self._lowest[where, producer_id] = (epoch, sequence)
        if len(self._lowest) > MAX_REFUSED:
            del self._lowest[next(iter(self._lowest))]

    def taken(self, where: Where, producer_id: int) -> None:
        """A batch in a transaction was appended."""
        self._lowest.pop((where, producer_id), None)

    def early(self, where: Where, producer_id: int, sequence: int) -> bool:
        """Whether a batch that was refused must come before this one."""
        known = self._lowest.get((where, producer_id))
        return known is not None and sequence > known[1]
