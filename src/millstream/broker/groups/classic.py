"""The classic group protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure state machine.

Events are method calls that carry the time; what follows from them comes back as effects: answers to requests (named by
tokens that the caller chose) and writes of the group's metadata, to be carried out in order. Nothing here waits: the
caller asks for ``next_deadline`` and calls ``tick`` then.

Source: Kafka's GroupMetadataManager and ClassicGroup; KIP-345 (static members), KIP-394 (member ids are given before
joining), KIP-800 (reasons), KIP-814 (a static leader that returns skips the assignment).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from millstream.broker.groups.classic_events import Effect, Join, Joined, Store, Synced, Token
from millstream.broker.groups.subscription import subscribed_topics
from millstream.broker.limits import MAX_PENDING_MEMBERS
from millstream.protocol import errors

# A new member's JoinGroup waits at most this long for the rebalance: its client may be gone (Kafka: 5 minutes).
NEW_MEMBER_JOIN_SECONDS = 300.0


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


@dataclass(slots=True)
class InitialRebalance:
    """The rebalance of a group that was empty: it ends at its own time, whoever has come or only has an id until then.

    Each time that members came meanwhile it waits once more, within the rebalance timeout
    (GroupMetadataManager.tryCompleteInitialRebalanceElseSchedule).
    """

    deadline: float
    left: float  # seconds that it may still be put off
    grew: bool = False


class ClassicGroup:
    """One group. ``new_id`` makes member ids from a client id or instance id."""

    def __init__(
        self, group_id: str, new_id: Callable[[str], str], *, initial_delay: float = 0.0, max_size: int = 0x7FFFFFFF
    ) -> None:
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
        self.initial_delay = initial_delay
        self.max_size = max_size
        self._new_id = new_id
        self._join_deadline = 0.0  # the rebalance ends now, whoever is missing
        self._initial: InitialRebalance | None = None  # set while a group that was empty gathers members
        self._sync_deadline = 0.0

    # ---- events

    def join(self, request: Join, token: Token, now: float) -> list[Effect]:
        """JoinGroup."""
        if self.state is State.DEAD:
            return [Joined(token, errors.COORDINATOR_NOT_AVAILABLE, request.member_id)]
        if not self._has_room(request.member_id):
            return [*self._turn_away(request.member_id, now), Joined(token, errors.GROUP_MAX_SIZE_REACHED, "")]
        if not self._accepts(request):
            return [Joined(token, errors.INCONSISTENT_GROUP_PROTOCOL, request.member_id)]
        if not request.member_id:
            return self._join_new(request, token, now)
        return self._join_known(request, token, now)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: dict[str, bytes],
        token: Token,
        now: float,
    ) -> list[Effect]:
        """SyncGroup; the leader's brings everybody's assignment."""
        error = self._check(member_id, instance_id, generation)
        if error:
            return [Synced(token, error)]
        if (protocol_type is not None and protocol_type != self.protocol_type) or (
            protocol is not None and protocol != self.protocol
        ):
            return [Synced(token, errors.INCONSISTENT_GROUP_PROTOCOL)]
        member = self.members[member_id]
        if self.state is State.PREPARING:
            return [Synced(token, errors.REBALANCE_IN_PROGRESS)]
        if self.state is State.STABLE:
            self.unsynced.discard(member_id)
            self._touch(member, now)
            return [self._synced(token, member)]
        if self.state is not State.COMPLETING:
            return [Synced(token, errors.UNKNOWN_MEMBER_ID)]
        effects: list[Effect] = []
        if member.syncing is not None:
            effects.append(Synced(member.syncing, errors.REBALANCE_IN_PROGRESS))
        member.syncing = token
        self.unsynced.discard(member_id)
        self._touch(member, now)
        if member_id == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
            self._enter(State.STABLE, now)
            effects.append(Store())
            for each in self.members.values():
                if each.syncing is not None:
                    effects.append(self._synced(each.syncing, each))
                    each.syncing = None
                    self._touch(each, now)
        return effects

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> int:
        """Heartbeat; returns the error code."""
        error = self._check(member_id, instance_id, generation)
        if error:
            return error
        self._touch(self.members[member_id], now)
        return errors.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else errors.NONE

    def leave(self, members: list[tuple[str, str | None]], now: float) -> tuple[list[int], list[Effect]]:
        """LeaveGroup of members (id and instance id); their error codes, and what follows once all of them are gone.

        Source: GroupMetadataManager.classicGroupLeaveToClassicGroup.
        """
        if self.state is State.DEAD:
            return [errors.COORDINATOR_NOT_AVAILABLE] * len(members), []
        codes: list[int] = []
        effects: list[Effect] = []
        for member_id, instance_id in members:
            if self.pending.pop(member_id, None) is not None:
                codes.append(errors.NONE)
                continue
            if instance_id is not None and not member_id:  # an administrator removes a static member
                member_id = self.static.get(instance_id, "")
            codes.append(self._identify(member_id, instance_id))
            if not codes[-1]:
                effects += self._drop(member_id)
        if errors.NONE in codes:
            effects += self._go_on(now)
        return codes, effects

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now: float) -> int:
        """Whether a member may commit offsets now (an empty group takes commits from outside: generation -1)."""
        if generation < 0 and self.state is State.EMPTY:
            return errors.NONE  # whatever member it names (ClassicGroup.validateOffsetCommit)
        error = self._check(member_id, instance_id, generation)
        if error:
            return error
        self._touch(self.members[member_id], now)
        return errors.REBALANCE_IN_PROGRESS if self.state is State.COMPLETING else errors.NONE

    def check_transactional_commit(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """Whether a transactional producer may commit for a member; -1 and no member: it does not say which (before KIP-447).

        Source: ClassicGroup.validateOffsetCommit.
        """
        unnamed = self.state is not State.DEAD and not member_id and instance_id is None
        if generation < 0 and (self.state is State.EMPTY or unnamed):
            return errors.NONE
        return self._check(member_id, instance_id, generation)

    def check_offset_delete(self) -> int:
        """Whether offsets may be deleted now (ClassicGroup.validateOffsetDelete); ``follows`` says of which topics."""
        if self.state is State.DEAD:
            return errors.GROUP_ID_NOT_FOUND
        kept = self.state is not State.EMPTY and self.protocol_type != "consumer"
        return errors.NON_EMPTY_GROUP if kept else errors.NONE

    def follows(self, topic: str) -> bool:
        """Whether members follow a topic; consumers of which it is not known may (ClassicGroup.isSubscribedToTopic)."""
        return self.protocol_type == "consumer" if self.topics is None else topic in self.topics

    def restored(self, now: float) -> None:
        """After a restart, with its members: what follows from them."""
        self.state = State.STABLE if self.members else State.EMPTY
        self.since = now
        self._follow()

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: expire members, end a rebalance that took too long."""
        effects: list[Effect] = []
        overdue = [i for i, deadline in self.pending.items() if deadline <= now]
        for member_id in overdue:
            del self.pending[member_id]
        effects += self._expire(now)
        if overdue:
            effects += self._maybe_complete(now, expired=True)
        if self.state is State.PREPARING:
            if self._initial is not None:
                effects += self._end_initial(self._initial, now)
            elif now >= self._join_deadline:
                effects += self._complete_join(now)
        elif self.unsynced and now >= self._sync_deadline:
            for member_id in list(self.unsynced):
                effects += self._drop(member_id)
            effects += self._prepare(now)
        return effects

    def next_deadline(self) -> float | None:
        """When tick must be called next; None: not before another event."""
        times = list(self.pending.values())
        times += [m.deadline for m in self.members.values() if m.new or (m.joining is None and m.syncing is None)]
        if self.state is State.PREPARING:
            times.append(self._initial.deadline if self._initial is not None else self._join_deadline)
        elif self.unsynced:
            times.append(self._sync_deadline)
        return min(times, default=None)

    def die(self) -> list[Effect]:
        """The group is deleted: answer whoever waits."""
        self.state = State.DEAD
        effects: list[Effect] = []
        for member in self.members.values():
            effects += self._refuse(member, errors.COORDINATOR_NOT_AVAILABLE)
        self.members.clear()
        return effects

    # ---- joining

    def _has_room(self, member_id: str) -> bool:
        """Whether one more may join; ids that are only given do not count (GroupMetadataManager.acceptJoiningMember)."""
        known = self.members.get(member_id)
        if self.state is State.PREPARING:
            waiting = sum(m.joining is not None for m in self.members.values())
            return waiting < self.max_size or (known is not None and known.joining is not None)
        return self.state is State.EMPTY or known is not None or len(self.members) < self.max_size

    def _turn_away(self, member_id: str, now: float) -> list[Effect]:
        """A member for which there is no room is not waited for, either."""
        effects = self._drop(member_id) if member_id in self.members else []
        self.pending.pop(member_id, None)
        return effects + self._maybe_complete(now)

    def _accepts(self, request: Join) -> bool:
        """Whether the protocols fit those that the members have now, its own included (ClassicGroup.supportsProtocols)."""
        names = {name for name, _ in request.protocols}
        if self.state is State.EMPTY:
            return bool(names and request.protocol_type)
        if request.protocol_type != self.protocol_type:
            return False
        return any(all(any(n == name for n, _ in m.protocols) for m in self.members.values()) for name in names)

    def _join_new(self, request: Join, token: Token, now: float) -> list[Effect]:
        member_id = self._new_id(request.instance_id or request.client_id)
        if request.instance_id is not None:
            known = self.static.get(request.instance_id)
            if known is not None:
                return self._replace(known, member_id, request, token, now)
            return self._add(member_id, request, token, now)
        if request.id_first:
            if len(self.pending) >= MAX_PENDING_MEMBERS:
                return [Joined(token, errors.GROUP_MAX_SIZE_REACHED, "")]
            self.pending[member_id] = now + request.session_seconds
            return [Joined(token, errors.MEMBER_ID_REQUIRED, member_id)]
        return self._add(member_id, request, token, now)

    def _join_known(self, request: Join, token: Token, now: float) -> list[Effect]:
        member_id = request.member_id
        if member_id in self.pending:
            if request.instance_id is not None:
                return [Joined(token, errors.UNKNOWN_MEMBER_ID, member_id)]
            del self.pending[member_id]
            return self._add(member_id, request, token, now)
        error = self._identify(member_id, request.instance_id)
        if error:
            return [Joined(token, error, member_id)]
        member = self.members[member_id]
        same = member.protocols == request.protocols
        if self.state is State.PREPARING:
            return self._rejoin(member, request, token, now)
        if self.state is State.COMPLETING:
            if same:  # its answer to the join was lost
                return [self._joined(token, member)]
            return self._rejoin(member, request, token, now)
        if self.state is State.STABLE:
            if member_id == self.leader or not same:
                return self._rejoin(member, request, token, now)
            self._touch(member, now)
            return [self._joined(token, member)]
        return [Joined(token, errors.UNKNOWN_MEMBER_ID, member_id)]

    def _add(self, member_id: str, request: Join, token: Token, now: float) -> list[Effect]:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_seconds,
            request.rebalance_seconds,
            request.protocols,
            joining=token,
            new=True,
            deadline=now + NEW_MEMBER_JOIN_SECONDS,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        if self._initial is not None:
            self._initial.grew = True
        self.members[member_id] = member
        if self.leader is None:
            self.leader = member_id
        if request.instance_id is not None:
            self.static[request.instance_id] = member_id
        return self._prepare(now)

    def _rejoin(self, member: Member, request: Join, token: Token, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if member.joining is not None:
            effects.append(Joined(member.joining, errors.REBALANCE_IN_PROGRESS, member.id))
        member.protocols = request.protocols
        member.session_seconds = request.session_seconds
        member.rebalance_seconds = request.rebalance_seconds
        member.client_id, member.client_host = request.client_id, request.client_host
        member.joining = token
        return effects + self._prepare(now)

    def _replace(self, old_id: str, new_id: str, request: Join, token: Token, now: float) -> list[Effect]:
        """A static member has come back under a new member id."""
        member = self.members.pop(old_id)
        effects = self._refuse(member, errors.FENCED_INSTANCE_ID)
        member.id, member.new = new_id, False
        self.members[new_id] = member
        if old_id in self.unsynced:
            self.unsynced.discard(old_id)
            self.unsynced.add(new_id)
        self.static[request.instance_id or ""] = new_id
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = new_id
        same_choice = True
        before = member.protocols
        member.protocols = request.protocols
        member.session_seconds = request.session_seconds
        member.rebalance_seconds = request.rebalance_seconds
        member.client_id, member.client_host = request.client_id, request.client_host
        self._touch(member, now)
        if self.state is State.STABLE:
            same_choice = self._select() == self.protocol
            if same_choice and dict(before).get(self.protocol or "") is not None:
                effects.append(Store())
                if request.may_skip:
                    joined = self._joined(token, member, skip=was_leader)
                else:  # an older client that thinks it leads would assign from what it alone knows
                    joined = Joined(
                        token,
                        0,
                        new_id,
                        self.generation,
                        self.protocol_type,
                        self.protocol,
                        old_id if was_leader else self.leader or "",
                    )
                return [*effects, joined]
        member.joining = token
        return effects + self._prepare(now)

    # ---- rebalancing

    def _prepare(self, now: float) -> list[Effect]:
        """Begin a rebalance, or go on with it."""
        if self.state is State.PREPARING:
            return self._maybe_complete(now)
        effects: list[Effect] = []
        if self.state is State.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                if member.syncing is not None:
                    effects.append(Synced(member.syncing, errors.REBALANCE_IN_PROGRESS))
                    member.syncing = None
                    self._touch(member, now)
        self.unsynced.clear()
        longest = max((m.rebalance_seconds for m in self.members.values()), default=0.0)
        self._join_deadline = now + longest
        if self.state is State.EMPTY:
            self._initial = InitialRebalance(now + self.initial_delay, max(longest - self.initial_delay, 0.0))
        self._enter(State.PREPARING, now)
        if self._initial is not None:
            return effects + self._end_initial(self._initial, now)
        return effects + self._maybe_complete(now)

    def _end_initial(self, initial: InitialRebalance, now: float) -> list[Effect]:
        """End the first rebalance if it is time, or put it off because members came."""
        if now < initial.deadline:
            return []
        if not initial.grew or not initial.left:
            return self._complete_join(now)
        delay = min(self.initial_delay, initial.left)
        self._initial = InitialRebalance(initial.deadline + delay, max(initial.left - self.initial_delay, 0.0))
        return []

    def _maybe_complete(self, now: float, expired: bool = False) -> list[Effect]:
        """End the rebalance when everybody is there; the first one of a group only because somebody's time was up."""
        if self.state is not State.PREPARING or self.pending or (self._initial is not None and not expired):
            return []
        if any(m.joining is None for m in self.members.values()):
            return []
        return self._complete_join(now)

    def _complete_join(self, now: float) -> list[Effect]:
        """Begin the next generation with those who joined."""
        for member in [m for m in self.members.values() if m.joining is None and m.instance_id is None]:
            del self.members[member.id]
        joined = [m for m in self.members.values() if m.joining is not None]
        if self.members and not joined:  # only static members that have not come back: their sessions decide
            longest = max(m.rebalance_seconds for m in self.members.values())
            self._join_deadline = now + longest
            return []
        self.generation += 1
        self._initial = None
        if not self.members:
            self.leader = self.protocol = None
            self._follow()
            self._enter(State.EMPTY, now)
            return [Store()]
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self.protocol = self._select()
        self._follow()
        self._enter(State.COMPLETING, now)
        self.unsynced = set(self.members)
        self._sync_deadline = now + max(m.rebalance_seconds for m in self.members.values())
        effects: list[Effect] = []
        for member in joined:
            effects.append(self._joined(member.joining, member))
            member.joining = None
            member.new = False
            self._touch(member, now)
        return effects

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

    def _expire(self, now: float) -> list[Effect]:
        """Remove members whose session has ended."""
        effects: list[Effect] = []
        for member in list(self.members.values()):
            waits = (member.joining is not None and not member.new) or member.syncing is not None
            if member.deadline <= now and not waits and member.id in self.members:
                effects += self._remove(member.id, now, expired=True)
        return effects

    def _remove(self, member_id: str, now: float, expired: bool = False) -> list[Effect]:
        """A member is lost."""
        return self._drop(member_id) + self._go_on(now, expired)

    def _go_on(self, now: float, expired: bool = False) -> list[Effect]:
        """Members are gone: the others rebalance, or need not wait for them."""
        if self.state in (State.STABLE, State.COMPLETING):
            return self._prepare(now)
        return self._maybe_complete(now, expired)

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

    # ---- small things

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

    def _follow(self) -> None:
        """Remember what the members of the generation follow (ClassicGroup.computeSubscribedTopics)."""
        if self.protocol_type == "consumer":
            self.topics = subscribed_topics(m.metadata(self.protocol) for m in self.members.values())
        else:
            self.topics = None

    def _touch(self, member: Member, now: float) -> None:
        member.deadline = now + member.session_seconds

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.since = now

    def _joined(self, token: Token, member: Member, skip: bool = False) -> Joined:
        members = []
        if member.id == self.leader:
            members = [(m.id, m.instance_id, m.metadata(self.protocol)) for m in self.members.values()]
        return Joined(
            token, 0, member.id, self.generation, self.protocol_type, self.protocol, self.leader or "", members, skip
        )

    def _synced(self, token: Token, member: Member) -> Synced:
        return Synced(token, 0, member.assignment, self.protocol_type, self.protocol)
