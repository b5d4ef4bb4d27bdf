"""The new group protocol (KIP-848) as a pure state machine: the broker assigns, members converge one heartbeat at a time.

The group has an epoch, raised by every change of members, subscriptions or topics, and a target assignment for it. Each
member has an epoch of its own: it first gives up what the target takes from it, says so, and then is given what others
have let go. Nothing stops for everybody. Members of the classic protocol take part through `consumer_classic.py`.

Events are method calls with the time; each returns an outcome to answer, and leaves in `changes` what must be stored. When
only members of the classic protocol would be left, the group may become classic: `leaving` then names the members that go
with that, and the caller converts the group (`migration.py`).

Source: Kafka's GroupMetadataManager, ConsumerGroup; KIP-848.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

from millstream.broker.groups.assignors import ASSIGNORS, Target
from millstream.broker.groups.consumer_members import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STABLE,
    STATIC_LEAVE_EPOCH,
    UNREVOKED,
    Changes,
    Heartbeat,
    Member,
    Outcome,
    within,
)
from millstream.broker.groups.group import Committer
from millstream.broker.groups.reconciliation import Owners
from millstream.broker.refused import Refused
from millstream.protocol import errors

# Members of the new protocol commit with this version of OffsetCommit or a later one.
COMMITS_EPOCHS = 9


def topics_hash(topics: Mapping[str, tuple[bytes, int]]) -> int:
    """A number of 64 bits that tells sets of topics apart."""
    digest = hashlib.blake2b(repr(sorted(topics.items())).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


# Equal to no group's topics.
UNKNOWN_TOPICS: dict[str, tuple[bytes, int]] = {"": (b"", -1)}


class ConsumerGroup:
    """One group. `resolve` gives the topics (name -> id and partitions) that exist now; `match` those of a regex."""

    kind = "consumer"
    protocol_type = "consumer"
    convertible = True
    settled = True

    def __init__(
        self,
        group_id: str,
        resolve: Callable[[], Mapping[str, tuple[bytes, int]]],
        match: Callable[[str], frozenset[str]],
        *,
        session_seconds: float = 45.0,
        max_size: int = 0x7FFFFFFF,
        max_classic: int = 0,
    ) -> None:
        self.id = group_id
        self.epoch = 1  # Kafka's first one, too (ModernGroup)
        self.target_epoch = 0
        self.target: Target = {}
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.since = 0.0  # when it became empty; after a restart the caller says so
        self.changes = Changes()
        self.stored_hash = 0  # of the topics that the stored epoch is for; only for restored
        self.session_seconds = session_seconds
        self.max_size = max_size
        self.max_classic = max_classic  # with at most so many members it may become classic
        self.leaving: frozenset[str] | None = None
        self.owners = Owners()
        self.resolve = resolve
        self._match = match
        self._seen: dict[str, tuple[bytes, int]] = {}  # the subscribed topics that the epoch is for

    # ---- events

    def heartbeat(self, beat: Heartbeat, now: float) -> Outcome:
        """A member joins, lives on, or leaves."""
        try:
            if beat.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return self._leave(beat, now)
            member = self._find(beat)
        except Refused as e:
            return Outcome(e.code, str(e))
        joining = beat.epoch == JOIN_EPOCH
        before = member.assigned
        self.advance(member, self._update(member, beat), beat.owned, now, joining=joining)
        member.deadline = now + self.session_seconds
        member.join_deadline = member.sync_deadline = None
        tell = joining or beat.full or member.assigned != before
        return Outcome(0, None, member.id, member.epoch, member.assigned if tell else None)

    def tick(self, now: float) -> list[str]:
        """Time has passed: fence members whose session, revocation or joining has taken too long; returns their ids."""
        gone = [m.id for m in self.members.values() if m.next_deadline() <= now]
        self.fence(gone, now)
        return gone

    def next_deadline(self) -> float | None:
        """When tick must be called next."""
        return min((m.next_deadline() for m in self.members.values()), default=None)

    def check_commit(self, by: Committer, now: float) -> int:
        """Whether a member may commit offsets of these partitions (topic id and index) now; the error code.

        With an earlier epoch than it has now, only if it has had every one of them since then (KIP-1251;
        ConsumerGroup.validateOffsetCommit).
        """
        if by.transactional and by.unnamed and by.epoch == -1:
            return errors.NONE
        if by.epoch < 0 and not self.members:
            return errors.NONE
        member = self.members.get(by.member_id)
        if member is None:
            return errors.UNKNOWN_MEMBER_ID
        if member.classic is not None:
            return errors.NONE if by.epoch == member.epoch else errors.ILLEGAL_GENERATION
        if not by.transactional and by.version < COMMITS_EPOCHS:
            return errors.UNSUPPORTED_VERSION
        if by.epoch == member.epoch:
            return errors.NONE
        had = by.epoch < member.epoch and all(member.since.get(p, by.epoch + 1) <= by.epoch for p in by.places)
        return errors.NONE if had else errors.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Whether an OffsetFetch that names a member is one of this group (ConsumerGroup.validateOffsetFetch)."""
        if member_id is None and epoch < 0:
            return errors.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return errors.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return errors.NONE
        return errors.STALE_MEMBER_EPOCH if member.classic is None else errors.ILLEGAL_GENERATION

    def check_offset_delete(self) -> int:
        """Offsets may always be deleted."""
        return errors.NONE

    # ---- what it shows to everybody

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
    def empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    unused = empty

    @property
    def emptied(self) -> float | None:
        """When its last member left; None while it has members."""
        return None if self.members else self.since

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

    def follows(self, topic: str) -> bool:
        """Whether members follow a topic."""
        return any(topic in self._names(member) for member in self.members.values())

    @property
    def metadata_hash(self) -> int:
        """Of the subscribed topics, their ids and partitions, as the present epoch knows them."""
        return topics_hash(self._seen)

    def restored(self, now: float) -> None:
        """After a restart: who owns what follows from the members; everybody gets a whole session."""
        self.owners = Owners()
        for member in self.members.values():
            if member.instance_id is not None:
                self.static[member.instance_id] = member.id
            member.deadline = now + (member.classic.session_seconds if member.classic else self.session_seconds)
            if member.state == UNREVOKED and member.classic is None:
                member.revoke_deadline = now + member.rebalance_seconds
            self.owners.own(member)
        wanted = self._wanted()
        # Topics may have changed after the last epoch was stored: then the next heartbeat must see a change.
        self._seen = wanted if topics_hash(wanted) == self.stored_hash else UNKNOWN_TOPICS

    def converted(self, now: float) -> None:
        """All members have come over from a classic group, which its leader has assigned to."""
        self.restored(now)
        self._seen = self._wanted()
        everybody = set(self.members)
        self.changes = Changes(True, everybody, set(everybody), True, set(everybody))

    # ---- members

    def identify(self, member_id: str, instance_id: str | None) -> Member:
        """The member that a request is from. Raises Refused (GroupMetadataManager.validateConsumerGroupMember).

        One that names an instance is looked for by that alone.
        """
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                raise Refused(errors.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            if known != member_id:
                text = f"Static member {member_id} with instance id {instance_id} was fenced by member {known}."
                raise Refused(errors.FENCED_INSTANCE_ID, text)
            return self.members[known]
        member = self.members.get(member_id)
        if member is None:
            raise Refused(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.id}.")
        return member

    def _find(self, beat: Heartbeat) -> Member:
        """The member that a heartbeat is from, made if it joins. Raises Refused."""
        if beat.epoch == JOIN_EPOCH:
            return self._join(beat)
        member = self.identify(beat.member_id, beat.instance_id)
        if beat.epoch == member.epoch:
            return member
        # Its last answer may have been lost: fine as long as it owns nothing that it was not given.
        if beat.epoch == member.previous_epoch and beat.owned is not None and within(beat.owned, member.assigned):
            return member
        text = f"The consumer group member has a {'smaller' if beat.epoch < member.epoch else 'larger'} member epoch "
        text += f"({beat.epoch}) than the one known by the group coordinator ({member.epoch}). The member must rejoin."
        raise Refused(errors.FENCED_MEMBER_EPOCH, text)

    def _join(self, beat: Heartbeat) -> Member:
        if beat.instance_id is not None and (old_id := self.static.get(beat.instance_id)) is not None:
            old = self.members[old_id]
            if not old.away and old.classic is None:  # its own id does not help (throwIfInstanceIdIsUnreleased)
                text = f"Static member {old_id} with instance id {beat.instance_id} is still in the group."
                raise Refused(errors.UNRELEASED_INSTANCE_ID, text)
            return self.replace(old, beat.member_id)
        return self.members.get(beat.member_id) or self.add(beat.member_id, beat.instance_id)

    def add(self, member_id: str, instance_id: str | None) -> Member:
        """A new member. Raises Refused."""
        if len(self.members) >= self.max_size:
            raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"The group {self.id} is full.")
        member = self.members[member_id] = Member(member_id, instance_id)
        if instance_id is not None:
            self.static[instance_id] = member_id
        self.changes.members.add(member_id)
        return member

    def replace(self, old: Member, member_id: str) -> Member:
        """A static member returns with a new id and finds its assignment as it was."""
        del self.members[old.id]
        for changed in (self.changes.members, self.changes.current, self.changes.target):
            changed |= {old.id, member_id}
        self.target[member_id] = self.target.pop(old.id, {})
        self.owners.disown(old)
        old.id, old.away = member_id, False
        old.since = {}
        old.assigned, old.revoking, old.state, old.revoke_deadline, old.epoch = {}, {}, STABLE, None, 0
        old.join_deadline = old.sync_deadline = None
        self.members[old.id] = old
        self.static[old.instance_id or ""] = old.id
        return old

    def _leave(self, beat: Heartbeat, now: float) -> Outcome:
        member = self.identify(beat.member_id, beat.instance_id)
        if beat.epoch == STATIC_LEAVE_EPOCH and member.instance_id is not None:
            self.owners.disown(member)
            member.revoking, member.revoke_deadline = {}, None
            self.owners.own(member)
            member.away = True
            member.epoch = STATIC_LEAVE_EPOCH
            self.changes.current.add(member.id)
        else:
            self.fence([member.id], now)
        return Outcome(0, None, beat.member_id, beat.epoch)

    def fence(self, member_ids: Collection[str], now: float) -> None:
        """Members are gone or, where the group is to become classic by that, about to be (`leaving`).

        Source: GroupMetadataManager.consumerGroupFenceMembers.
        """
        if len(self.members) > len(member_ids) and self.classic_without(
            member_ids, len(self.members) - len(member_ids)
        ):
            self.leaving = frozenset(member_ids)
        elif member_ids:
            self.remove(member_ids, now)

    def classic_without(self, member_ids: Collection[str], size: int) -> bool:
        """Whether a group of so many members may become classic when the last ones of the new protocol are gone."""
        last = any(self.members[member_id].classic is None for member_id in member_ids)
        others = all(m.classic is not None for m in self.members.values() if m.id not in member_ids)
        return last and others and size <= self.max_classic

    def remove(self, member_ids: Collection[str], now: float) -> None:
        """Members are gone."""
        for member_id in member_ids:
            member = self.members.pop(member_id)
            self.owners.disown(member)
            if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
                del self.static[member.instance_id]
            self.target.pop(member_id, None)
            for changed in (self.changes.members, self.changes.current, self.changes.target):
                changed.add(member_id)
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
        before = _said(member)
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
        member.classic = None
        after = _said(member)
        if after != before:
            self.changes.members.add(member.id)
        return after[:2] != before[:2] or self.assignor != assignor

    # ---- assigning

    def advance(
        self, member: Member, changed: bool, owned: dict[bytes, set[int]] | None, now: float, *, joining: bool
    ) -> None:
        """A member was heard of: raise the epoch if it or the topics have changed, assign, bring it nearer to its target."""
        if self._refresh_topics() or changed:
            self._raise_epoch()
        if self.target_epoch < self.epoch:
            self._assign()
        before = (member.epoch, member.state, member.assigned, member.revoking)
        self.owners.reconcile(member, self.target.get(member.id, {}), self.target_epoch, owned, now)
        if (member.epoch, member.state, member.assigned, member.revoking) != before or joining:
            self.changes.current.add(member.id)

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self.changes.group = True

    def _names(self, member: Member) -> frozenset[str]:
        return member.topics | self._match(member.regex) if member.regex else member.topics

    def _wanted(self) -> dict[str, tuple[bytes, int]]:
        """The topics that members follow and that exist."""
        existing = self.resolve()
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


def _said(member: Member) -> tuple[object, ...]:
    """What a member's record holds of what it can change; first what makes the group assign again."""
    said = (member.assignor, member.rack_id, member.rebalance_seconds, member.classic)
    return member.topics, member.regex, *said
