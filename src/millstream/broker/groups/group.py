"""What groups of all kinds have in common: a state machine (Group), and what carries it out (Kind).

A new kind of group is a module with both, and its registration in `coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sized
from typing import Any, NamedTuple, Protocol

from millstream.broker.internal_topics import Replayed, Write


class Committer(NamedTuple):
    """Who wants to commit offsets, and where (topic ids and partitions). `version` is that of OffsetCommit."""

    member_id: str
    instance_id: str | None
    epoch: int  # or generation
    places: list[tuple[bytes, int]]
    version: int
    transactional: bool = False

    @property
    def unnamed(self) -> bool:
        """Whether it does not say who it is: transactional producers before KIP-447."""
        return not self.member_id and self.instance_id is None


class Group(Protocol):
    """One group, without I/O: its members and where they stand."""

    id: str

    @property
    def kind(self) -> str:
        """As ListGroups names its type."""

    @property
    def protocol_type(self) -> str | None:
        """As ListGroups names the protocol that its members speak among themselves; None if nobody has said."""

    @property
    def convertible(self) -> bool:
        """Whether it makes room for a group of another kind as soon as it is empty."""

    @property
    def state(self) -> str:
        """As ListGroups names it."""

    @property
    def members(self) -> Sized:
        """Its members."""

    @property
    def empty(self) -> bool:
        """Whether it has no members: it may be deleted."""

    @property
    def unused(self) -> bool:
        """Whether it is empty, and nobody is about to join."""

    @property
    def emptied(self) -> float | None:
        """When its last member left, on the loop's clock; None while it has members, or if it never had any."""

    @property
    def settled(self) -> bool:
        """Whether it is known what its members follow."""

    def subscribed(self) -> Collection[str]:
        """Topics that members follow, as far as it is known."""

    def follows(self, topic: str) -> bool:
        """Whether members follow a topic, or may."""

    def next_deadline(self) -> float | None:
        """When the next of its clocks ends; None: none runs."""

    def restored(self, now: float) -> None:
        """It was read back from its records: what follows from them."""

    def check_commit(self, by: Committer, now: float) -> int:
        """Whether offsets may be committed; the error code."""

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Whether committed offsets may be read; the error code."""

    def check_offset_delete(self) -> int:
        """Whether offsets of topics that it does not follow may be deleted; the error code."""


class Kind(Protocol):
    """What carries out all groups of one kind: stores them, reads them back, watches their clocks."""

    records: frozenset[int]
    """The types of its records in `__consumer_offsets`."""

    def read(self, record: Replayed, written: float) -> None:
        """A record of it, read back at start; `written` is when it was, on the loop's clock."""

    def removal(self, group: Any) -> list[Write]:
        """The records that say that an empty group is gone."""

    def removed(self, group: Any) -> None:
        """The group is gone: requests that wait for it are answered."""

    def tick(self, group: Any, now: float) -> None:
        """A clock of the group has ended."""
