"""The new group protocol (KIP-848) as a pure state machine: the broker assigns, members converge one heartbeat at a time.

The group has an epoch, raised by every change of members, subscriptions or topics, and a target assignment for it. Each
member has an epoch of its own: it first gives up what the target takes from it, says so, and then is given what others
have let go. Nothing stops for everybody.

Events are method calls with the time; each returns an outcome to answer, and leaves in ``changes`` what must be stored.

Source: Kafka's GroupMetadataManager, ConsumerGroup, CurrentAssignmentBuilder; KIP-848.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.broker.groups.assignors import ASSIGNORS, Target
from millstream.protocol import errors

Partitions = dict[bytes, set[int]]  # topic id -> partitions
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
STABLE, UNREVOKED, UNRELEASED = 0, 1, 2


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
    """The answer to a heartbeat. ``assignment`` None: unchanged."""

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


def topics_hash(topics: Mapping[str, tuple[bytes, int]]) -> int:
    """A number of 64 bits that tells sets of topics apart."""
    digest = hashlib.blake2b(repr(sorted(topics.items())).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


# Equal to no group's topics.
UNKNOWN_TOPICS: dict[str, tuple[bytes, int]] = {"": (b"", -1)}


class ConsumerGroup:
    """One group. ``resolve`` gives the topics (name -> id and partitions) that exist now; ``match`` those of a regex."""

    def __init__(
        self,
        group_id: str,
        resolve: Callable[[], Mapping[str, tuple[bytes, int]]],
        match: Callable[[str], frozenset[str]],
        *,
        session_seconds: float = 45.0,
        max_size: int = 0x7FFFFFFF,
    ) -> None:
        self.id = group_id
        self.epoch = 1  # Kafka's first one, too (ModernGroup)
        self.target_epoch = 0
        self.target: Target = {}
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.since = 0.0  # when it became empty; after a restart the caller says so
        self.changes = Changes()
        self.stored_hash = 0  # of the topics that the stored epoch is for; only for restore
        self.session_seconds = session_seconds
        self.max_size = max_size
        self._resolve = resolve
        self._match = match
        self._seen: dict[str, tuple[bytes, int]] = {}  # the subscribed topics that the epoch is for
        self._owners: dict[tuple[bytes, int], str] = {}

    # ---- events

    def heartbeat(self, beat: Heartbeat, now: float) -> Outcome:
        """A member joins, lives on, or leaves."""
        if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat, now)
        member, refusal = self._find(beat, now)
        if member is None:
            return refusal
        joining = beat.epoch == JOIN_EPOCH
        changed = self._update(member, beat)
        changed |= self._refresh_topics()
        if changed:
            self._raise_epoch()
        if self.target_epoch < self.epoch:
            self._assign()
        before = (member.epoch, member.state, member.assigned, member.revoking)
        self._reconcile(member, beat.owned, now)
        if (member.epoch, member.state, member.assigned, member.revoking) != before or joining:
            self.changes.current.add(member.id)
        member.deadline = now + self.session_seconds
        tell = joining or beat.full or member.assigned != before[2]
        return Outcome(0, None, member.id, member.epoch, member.assigned if tell else None)

    def tick(self, now: float) -> list[str]:
        """Time has passed: fence members whose session or revocation has taken too long; returns their ids."""
        gone = [
            m.id
            for m in self.members.values()
            if m.deadline <= now or (m.revoke_deadline is not None and m.revoke_deadline <= now)
        ]
        for member_id in gone:
            self._remove(member_id, now)
        return gone

    def next_deadline(self) -> float | None:
        """When tick must be called next."""
        times = [m.deadline for m in self.members.values()]
        times += [m.revoke_deadline for m in self.members.values() if m.revoke_deadline is not None]
        return min(times, default=None)

    def check_commit(self, member_id: str, epoch: int, places: list[tuple[bytes, int]]) -> int:
        """Whether a member may commit offsets of these partitions (topic id and index) now; the error code.

        With an earlier epoch than it has now, only if it has had every one of them since then (KIP-1251;
        ConsumerGroup.validateOffsetCommit).
        """
        if epoch < 0 and not self.members:
            return errors.NONE
        member = self.members.get(member_id)
        if member is None:
            return errors.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return errors.NONE
        had = epoch < member.epoch and all(member.since.get(place, epoch + 1) <= epoch for place in places)
        return errors.NONE if had else errors.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Whether an OffsetFetch that names a member is one of this group (ConsumerGroup.validateOffsetFetch)."""
        if member_id is None and epoch < 0:
            return errors.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return errors.UNKNOWN_MEMBER_ID
        return errors.NONE if epoch == member.epoch else errors.STALE_MEMBER_EPOCH

    @property
    def state(self) -> str:
        """As ConsumerGroupDescribe and ListGroups name it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(m.state == STABLE and m.epoch == self.target_epoch for m in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for, of several the first (ConsumerGroup.computePreferredServerAssignor)."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(ASSIGNORS, key=lambda name: votes.get(name, 0))

    def subscribed(self) -> set[str]:
        """Topics that members follow, existing or not."""
        return {name for m in self.members.values() for name in self._names(m)}

    @property
    def metadata_hash(self) -> int:
        """Of the subscribed topics, their ids and partitions, as the present epoch knows them."""
        return topics_hash(self._seen)

    def restore(self, now: float) -> None:
        """After a restart: who owns what follows from the members; everybody gets a whole session."""
        self._owners = {}
        for member in self.members.values():
            if member.instance_id is not None:
                self.static[member.instance_id] = member.id
            member.deadline = now + self.session_seconds
            if member.state == UNREVOKED:
                member.revoke_deadline = now + member.rebalance_seconds
            self._own(member)
        wanted = self._wanted()
        # Topics may have changed after the last epoch was stored: then the next heartbeat must see a change.
        self._seen = wanted if topics_hash(wanted) == self.stored_hash else UNKNOWN_TOPICS

    # ---- members

    def _find(self, beat: Heartbeat, now: float) -> tuple[Member | None, Outcome]:
        """The member that a heartbeat is from, made if it joins."""
        nobody = Outcome(0)
        if beat.epoch == JOIN_EPOCH:
            return self._join(beat, now)
        member = self.members.get(beat.member_id)
        if member is None:
            return None, Outcome(
                errors.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {self.id}."
            )
        if beat.instance_id is not None and self.static.get(beat.instance_id) != beat.member_id:
            return None, Outcome(errors.FENCED_INSTANCE_ID, "Another member has this instance id.")
        if beat.epoch == member.epoch:
            return member, nobody
        # Its last answer may have been lost: fine as long as it owns nothing that it was not given.
        if beat.epoch == member.previous_epoch and beat.owned is not None and _within(beat.owned, member.assigned):
            return member, nobody
        text = f"The consumer group member has a {'smaller' if beat.epoch < member.epoch else 'larger'} member epoch "
        text += f"({beat.epoch}) than the one known by the group coordinator ({member.epoch}). The member must rejoin."
        return None, Outcome(errors.FENCED_MEMBER_EPOCH, text)

    def _join(self, beat: Heartbeat, now: float) -> tuple[Member | None, Outcome]:
        nobody = Outcome(0)
        if beat.instance_id is not None and (old_id := self.static.get(beat.instance_id)) is not None:
            old = self.members[old_id]
            if not old.away:  # its own id does not help (GroupMetadataManager.throwIfInstanceIdIsUnreleased)
                text = f"Static member {old_id} with instance id {beat.instance_id} is still in the group."
                return None, Outcome(errors.UNRELEASED_INSTANCE_ID, text)
            return self._come_back(old, beat, now), nobody
        member = self.members.get(beat.member_id)
        if member is None:
            if len(self.members) >= self.max_size:
                return None, Outcome(errors.GROUP_MAX_SIZE_REACHED, f"The group {self.id} is full.")
            member = Member(beat.member_id, beat.instance_id)
            self.members[member.id] = member
            if member.instance_id is not None:
                self.static[member.instance_id] = member.id
            self.changes.members.add(member.id)
        return member, nobody

    def _come_back(self, old: Member, beat: Heartbeat, now: float) -> Member:
        """A static member returns with a new id and finds its assignment as it was."""
        del self.members[old.id]
        self.changes.members |= {old.id, beat.member_id}
        self.changes.current |= {old.id, beat.member_id}
        self.changes.target |= {old.id, beat.member_id}
        self.target[beat.member_id] = self.target.pop(old.id, {})
        self._disown(old)
        old.id, old.away = beat.member_id, False
        old.since = {}
        old.assigned, old.revoking, old.state, old.revoke_deadline, old.epoch = {}, {}, STABLE, None, 0
        self.members[old.id] = old
        self.static[old.instance_id or ""] = old.id
        return old

    def _leave(self, beat: Heartbeat, now: float) -> Outcome:
        member = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            known = self.static.get(beat.instance_id)
            if known is None:
                return Outcome(errors.UNKNOWN_MEMBER_ID, "No member has this instance id.")
            if known != beat.member_id:
                return Outcome(errors.FENCED_INSTANCE_ID, "Another member has this instance id.")
        if member is None:
            return Outcome(errors.UNKNOWN_MEMBER_ID, f"Member {beat.member_id} is not a member of group {self.id}.")
        if beat.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            member.away = True
            member.epoch = STATIC_LEAVE_EPOCH
            self.changes.current.add(member.id)
        else:
            self._remove(member.id, now)
        return Outcome(0, None, beat.member_id, beat.epoch)

    def _remove(self, member_id: str, now: float) -> None:
        member = self.members.pop(member_id)
        self._disown(member)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        self.target.pop(member_id, None)
        self.changes.members.add(member_id)
        self.changes.current.add(member_id)
        self.changes.target.add(member_id)
        self._seen = self._wanted()
        self._raise_epoch()
        if not self.members:
            self.since = now
            self.target_epoch = self.epoch
            self.changes.target_epoch = True

    def _update(self, member: Member, beat: Heartbeat) -> bool:
        """Take over what the heartbeat says of the member; whether the group needs another assignment for it.

        A member that follows nothing needs none (GroupMetadataManager.hasMemberSubscriptionChanged).
        """
        assignor = self.assignor
        before = (member.topics, member.regex, member.assignor, member.rack_id, member.rebalance_seconds)
        if beat.topics is not None:
            member.topics = beat.topics
        if beat.regex is not None:
            member.regex = beat.regex or None
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_seconds is not None:
            member.rebalance_seconds = beat.rebalance_seconds
        member.client_id, member.client_host = beat.client_id, beat.client_host
        after = (member.topics, member.regex, member.assignor, member.rack_id, member.rebalance_seconds)
        if after != before:
            self.changes.members.add(member.id)
        return after[:2] != before[:2] or self.assignor != assignor

    # ---- assigning

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self.changes.group = True

    def _names(self, member: Member) -> frozenset[str]:
        return member.topics | self._match(member.regex) if member.regex else member.topics

    def _wanted(self) -> dict[str, tuple[bytes, int]]:
        """The topics that members follow and that exist."""
        existing = self._resolve()
        return {name: existing[name] for name in sorted(self.subscribed()) if name in existing}

    def _refresh_topics(self) -> bool:
        """Whether a topic that members follow came, went or grew."""
        wanted = self._wanted()
        changed = wanted != self._seen
        self._seen = wanted
        return changed

    def _assign(self) -> None:
        """Make the target assignment of the present epoch."""
        subscriptions = {
            m.id: {self._seen[name][0] for name in self._names(m) if name in self._seen} for m in self.members.values()
        }
        counts = dict(self._seen.values())
        target = ASSIGNORS[self.assignor](subscriptions, counts, self.target)
        for member_id in set(target) | set(self.target):
            if target.get(member_id) != self.target.get(member_id):
                self.changes.target.add(member_id)
        self.target, self.target_epoch = target, self.epoch
        self.changes.target_epoch = True

    def _reconcile(self, member: Member, owned: Partitions | None, now: float) -> None:
        """Bring a member one step nearer to its target."""
        if member.state == UNREVOKED:
            if owned is None or _overlap(owned, member.revoking):
                return
            self._disown(member)
            member.revoking, member.revoke_deadline, member.state = {}, None, STABLE
            self._own(member)
        elif member.state == STABLE and member.epoch == self.target_epoch:
            return
        target = self.target.get(member.id, {})
        kept: Partitions = {}
        given: Partitions = {}
        revoked: Partitions = {}
        waiting = False
        for topic in set(target) | set(member.assigned):
            have, want = member.assigned.get(topic, set()), target.get(topic, set())
            if have & want:
                kept[topic] = have & want
            if have - want:
                revoked[topic] = have - want
            for index in want - have:
                if self._owners.get((topic, index)) in (None, member.id):
                    given.setdefault(topic, set()).add(index)
                else:
                    waiting = True
        if revoked and (owned is None or _overlap(owned, revoked)):
            self._disown(member)
            member.assigned, member.revoking, member.state = kept, revoked, UNREVOKED
            member.previous_epoch = member.epoch
            member.revoke_deadline = now + member.rebalance_seconds
            self._own(member)
            return
        self._disown(member)
        member.assigned = {topic: kept.get(topic, set()) | given.get(topic, set()) for topic in set(kept) | set(given)}
        member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        member.state = UNRELEASED if waiting else STABLE
        self._own(member)

    def _own(self, member: Member) -> None:
        held = (member.assigned, member.revoking)
        places = [(topic, index) for partitions in held for topic, indexes in partitions.items() for index in indexes]
        member.since = {place: member.since.get(place, member.epoch) for place in places}
        for partitions in (member.assigned, member.revoking):
            for topic, indexes in partitions.items():
                for index in indexes:
                    self._owners[(topic, index)] = member.id

    def _disown(self, member: Member) -> None:
        for partitions in (member.assigned, member.revoking):
            for topic, indexes in partitions.items():
                for index in indexes:
                    if self._owners.get((topic, index)) == member.id:
                        del self._owners[(topic, index)]


def _within(inner: Partitions, outer: Partitions) -> bool:
    return all(indexes <= outer.get(topic, set()) for topic, indexes in inner.items())


def _overlap(one: Partitions, other: Partitions) -> bool:
    return any(indexes & other.get(topic, set()) for topic, indexes in one.items())
