"""Committed offsets of one group, plain and pending in transactions: values only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

Where = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group committed. `at` is epoch milliseconds; `expires` too, -1: by the broker's retention.

    `turn` counts the group's commits; Offsets sets it.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at: int = 0
    expires: int = -1
    turn: int = field(default=0, compare=False)


@dataclass(slots=True)
class Offsets:
    """What a group has committed. A transaction's offsets count only once it commits.

    Of two commits for a partition the later one wins, whenever the transaction of the earlier one ends
    (OffsetMetadataManager.replayEndTransactionMarker): each has the number of its turn.
    `upto` is an offset of `__consumer_offsets`: only when that is synced up to it may this be answered or shown.
    """

    committed: dict[Where, Committed] = field(default_factory=dict)
    pending: dict[int, dict[Where, Committed]] = field(default_factory=dict)  # producer id -> offsets
    turn: int = 0
    upto: int = 0

    def commit(self, where: Where, what: Committed) -> None:
        """A plain commit."""
        self.committed[where] = self._numbered(what)

    def commit_pending(self, producer_id: int, where: Where, what: Committed) -> None:
        """A commit inside a transaction."""
        self.pending.setdefault(producer_id, {})[where] = self._numbered(what)

    def _numbered(self, what: Committed) -> Committed:
        self.turn += 1
        return replace(what, turn=self.turn)

    def end(self, producer_id: int, commit: bool) -> None:
        """A transaction has ended: its offsets count, or are forgotten."""
        for where, what in self.pending.pop(producer_id, {}).items():
            before = self.committed.get(where)
            if commit and (before is None or before.turn < what.turn):
                self.committed[where] = what

    def forget(self, where: Where) -> None:
        """Offsets of a partition are deleted, those of open transactions, too."""
        self.committed.pop(where, None)
        for producer_id, offsets in list(self.pending.items()):
            if offsets.pop(where, None) is not None and not offsets:
                del self.pending[producer_id]

    def places(self) -> set[Where]:
        """Every partition that has an offset, committed or in an open transaction."""
        return set(self.committed).union(*self.pending.values())

    def unstable(self, where: Where) -> bool:
        """Whether a transaction that has not ended holds an offset for the partition."""
        return any(where in offsets for offsets in self.pending.values())

    def expired(self, cutoff: int, now: int) -> list[Where]:
        """Partitions whose offsets were committed at `cutoff` or before (or expire by themselves) and are not pending."""
        return [
            where
            for where, what in self.committed.items()
            if (what.at <= cutoff if what.expires < 0 else what.expires <= now) and not self.unstable(where)
        ]

    def __bool__(self) -> bool:
        return bool(self.committed or self.pending)
