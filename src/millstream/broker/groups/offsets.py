"""Committed offsets of one group, plain and pending in transactions: values only."""

from dataclasses import dataclass, field

Where = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset that a group committed. ``at`` is epoch milliseconds; ``expires`` too, -1: by the broker's retention."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    at: int = 0
    expires: int = -1


@dataclass(slots=True)
class Offsets:
    """What a group has committed. A transaction's offsets count only once it commits."""

    committed: dict[Where, Committed] = field(default_factory=dict)
    pending: dict[int, dict[Where, Committed]] = field(default_factory=dict)  # producer id -> offsets

    def commit(self, where: Where, what: Committed) -> None:
        """A plain commit."""
        self.committed[where] = what

    def commit_pending(self, producer_id: int, where: Where, what: Committed) -> None:
        """A commit inside a transaction."""
        self.pending.setdefault(producer_id, {})[where] = what

    def end(self, producer_id: int, commit: bool) -> None:
        """A transaction has ended: its offsets count, or are forgotten."""
        ended = self.pending.pop(producer_id, None)
        if ended and commit:
            self.committed.update(ended)

    def unstable(self, where: Where) -> bool:
        """Whether a transaction that has not ended holds an offset for the partition."""
        return any(where in offsets for offsets in self.pending.values())

    def expired(self, cutoff: int, now: int) -> list[Where]:
        """Partitions whose offsets were committed before ``cutoff`` (or expire by themselves) and are not pending."""
        return [
            where
            for where, what in self.committed.items()
            if (what.at < cutoff if what.expires < 0 else what.expires <= now) and not self.unstable(where)
        ]
