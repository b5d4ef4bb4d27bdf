"""The members of a classic group: who they are, whether a request is from one, and what the group says of itself to them.

What they do is in `classic.py`, how they come to a new generation in `classic_rebalance.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from millstream.broker.groups.classic_events import Effect, Joined, Synced, Token
from millstream.broker.groups.subscription import subscribed_topics
from millstream.protocol import errors


class State(StrEnum):
    """As DescribeGroups and ListGroups name them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """A member of the group. Times are seconds on the caller's clock."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    deadline: float = 0.0
    joining: Token | None = None
    syncing: Token | None = None
    new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said under a protocol."""
        for name, data in self.protocols:
            if name == protocol:
                return data
        return b""

    def vote(self, candidates: set[str]) -> str | None:
        """The first of its protocols that is a candidate."""
        return next((name for name, _ in self.protocols if name in candidates), None)


class Members:
    """The group as far as it does not change by itself."""

    kind = "classic"
    convertible = True

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.state = State.EMPTY
        self.since = 0.0  # when the state began
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[str, float] = {}  # member ids that were given but have not joined -> deadline
        self.unsynced: set[str] = set()  # members of this generation that have not asked for their assignment
        self.topics: frozenset[str] | None = None  # that the members of this generation follow; None: not known

    # ---- what it shows to everybody

    @property
    def empty(self) -> bool:
        """Whether it may be deleted (ClassicGroup.validateDeleteGroup)."""
        return self.state in (State.EMPTY, State.DEAD)

    @property
    def unused(self) -> bool:
        """Whether it is empty, and no member id is given out."""
        return self.state is State.EMPTY and not self.pending

    @property
    def emptied(self) -> float | None:
        """When its last member left; None while it has members, or if it never had any."""
        return self.since if self.state is State.EMPTY and self.protocol_type else None

    @property
    def settled(self) -> bool:
        """Whether it is known what its members follow."""
        return self.state is State.EMPTY or (self.state is State.STABLE and self.topics is not None)

    def subscribed(self) -> frozenset[str]:
        """Topics that the members of the generation follow, if they are known."""
        return self.topics or frozenset()

    def follows(self, topic: str) -> bool:
        """Whether members follow a topic; consumers of which it is not known may (ClassicGroup.isSubscribedToTopic)."""
        return self.protocol_type == "consumer" if self.topics is None else topic in self.topics

    def restored(self, now: float) -> None:
        """After a restart, with its members: what follows from them."""
        self.state = State.STABLE if self.members else State.EMPTY
        self._follow()

    def adopt(self, member: Member) -> None:
        """A member comes from a group of the new protocol that becomes this one."""
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def settle(self, now: float) -> None:
        """All members are adopted: the generation that they are in is complete."""
        self.protocol = self._select()
        self._follow()
        self._enter(State.STABLE, now)

    def die(self, error: int = errors.COORDINATOR_NOT_AVAILABLE) -> list[Effect]:
        """The group is gone: answer every request that waits."""
        self.state = State.DEAD
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._refuse(member, error)
        self.members.clear()
        return effects

    # ---- who it is

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> int:
        if self.state is State.DEAD:
            return errors.COORDINATOR_NOT_AVAILABLE
        error = self._identify(member_id, instance_id)
        if error:
            return error
        return errors.ILLEGAL_GENERATION if generation != self.generation else errors.NONE

    def _identify(self, member_id: str, instance_id: str | None) -> int:
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return errors.UNKNOWN_MEMBER_ID
            return errors.FENCED_INSTANCE_ID if known != member_id else errors.NONE
        return errors.NONE if member_id in self.members else errors.UNKNOWN_MEMBER_ID

    # ---- what changes

    def _drop(self, member_id: str) -> list[Effect]:
        """Forget a member."""
        member = self.members.pop(member_id)
        self.unsynced.discard(member_id)
        effects = self._refuse(member, errors.UNKNOWN_MEMBER_ID)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next((m.id for m in self.members.values() if m.joining is not None), None) or next(
                iter(self.members), None
            )
        return effects

    def _refuse(self, member: Member, error: int) -> list[Effect]:
        effects: list[Effect] = []
        if member.joining is not None:
            effects.append(Joined(member.joining, error, "" if error == errors.UNKNOWN_MEMBER_ID else member.id))
            member.joining = None
        if member.syncing is not None:
            effects.append(Synced(member.syncing, error))
            member.syncing = None
        return effects

    def _touch(self, member: Member, now: float) -> None:
        member.deadline = now + member.session_seconds

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.since = now

    def _follow(self) -> None:
        """Remember what the members of the generation follow (ClassicGroup.computeSubscribedTopics)."""
        if self.protocol_type == "consumer":
            self.topics = subscribed_topics(m.metadata(self.protocol) for m in self.members.values())
        else:
            self.topics = None

    def _select(self) -> str | None:
        """The protocol that most members prefer among those that all know."""
        candidates: set[str] | None = None
        for member in self.members.values():
            names = {name for name, _ in member.protocols}
            candidates = names if candidates is None else candidates & names
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates or set())
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name], default=None)

    # ---- what is answered

    def _joined(self, token: Token, member: Member, skip: bool = False) -> Joined:
        members = []
        if member.id == self.leader:
            members = [(m.id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values()]
        return Joined(
            token, 0, member.id, self.generation, self.protocol_type, self.protocol, self.leader or "", members, skip
        )

    def _synced(self, token: Token, member: Member) -> Synced:
        return Synced(token, 0, member.assignment, self.protocol_type, self.protocol)
