"""The members of a group of the new protocol (KIP-848): what is known of each, what they ask, and what they are answered."""

from __future__ import annotations

from dataclasses import dataclass, field

Partitions = dict[bytes, set[int]]  # topic id -> partitions
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
STABLE, UNREVOKED, UNRELEASED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What is known besides of a member that speaks the classic protocol (ClassicMemberMetadata)."""

    session_seconds: float
    protocols: list[tuple[str, bytes]]  # names and subscriptions, in its order of preference

    @property
    def protocol(self) -> str:
        """The protocol that it is told to follow: what it prefers; the broker assigns anyway."""
        return self.protocols[0][0]


@dataclass(slots=True)
class Member:
    """A member. Times are seconds on the caller's clock."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_seconds: float = 300.0
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: int = STABLE
    assigned: Partitions = field(default_factory=dict)
    revoking: Partitions = field(default_factory=dict)
    since: dict[tuple[bytes, int], int] = field(default_factory=dict)  # the epoch that each partition came with
    deadline: float = 0.0  # of its session
    revoke_deadline: float | None = None
    away: bool = False  # a static member that left for a while
    classic: ClassicMember | None = None  # None: it speaks the new protocol
    join_deadline: float | None = None  # of a classic member that was told to join again
    sync_deadline: float | None = None  # of a classic member that has joined

    @property
    def held(self) -> Partitions:
        """What it has, with what it has yet to give up."""
        topics = {*self.assigned, *self.revoking}
        return {topic: self.assigned.get(topic, set()) | self.revoking.get(topic, set()) for topic in topics}

    def next_deadline(self) -> float:
        """When the first of its clocks ends: then it is out of the group."""
        clocks = (self.revoke_deadline, self.join_deadline, self.sync_deadline)
        return min([self.deadline, *(clock for clock in clocks if clock is not None)])


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request; None: unchanged."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_seconds: float | None = None
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def full(self) -> bool:
        """Whether it says everything about the member, who then is told everything, too."""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_seconds is not None and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a heartbeat. `assignment` None: unchanged."""

    error: int
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class Changes:
    """What must be stored since the last time; ids of members, gone ones too."""

    group: bool = False
    members: set[str] = field(default_factory=set)
    target: set[str] = field(default_factory=set)
    target_epoch: bool = False
    current: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.group or self.members or self.target or self.target_epoch or self.current)


def within(inner: Partitions, outer: Partitions) -> bool:
    """Whether all partitions of the one are in the other."""
    return all(indexes <= outer.get(topic, set()) for topic, indexes in inner.items())


def overlap(one: Partitions, other: Partitions) -> bool:
    """Whether there is a partition in both."""
    return any(indexes & other.get(topic, set()) for topic, indexes in one.items())
