"""A share group (KIP-932) as a pure state machine: who is in it, and which partitions each member reads, several the same one.

Like a group of the new protocol it has an epoch and a target assignment; but a member gets its target at once, since
partitions are shared and nobody has to let go of one first.

Events are method calls with the time; each returns an outcome to answer, and leaves in `changes` what must be stored.

Source: Kafka's GroupMetadataManager (shareGroupHeartbeat), ShareGroup, ShareGroupAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.broker.groups.assignors import Target, simple
from millstream.broker.groups.consumer import UNKNOWN_TOPICS, topics_hash
from millstream.broker.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH, Changes, Outcome, Partitions
from millstream.broker.groups.group import Committer
from millstream.broker.refused import Refused
from millstream.protocol import errors


@dataclass(slots=True)
class ShareMember:
    """A member. Times are seconds on the caller's clock."""

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Partitions = field(default_factory=dict)
    deadline: float = 0.0  # of its session


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat request; None: unchanged."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""


class ShareGroup:
    """One group. `resolve` gives the topics (name -> id and partitions) that exist now."""

    kind = "share"
    protocol_type = "share"
    convertible = False
    settled = True

    def __init__(
        self,
        group_id: str,
        resolve: Callable[[], Mapping[str, tuple[bytes, int]]],
        *,
        session_seconds: float = 45.0,
        max_size: int = 200,
    ) -> None:
        self.id = group_id
        self.epoch = 1
        self.target_epoch = 0
        self.target: Target = {}
        self.members: dict[str, ShareMember] = {}
        self.since = 0.0  # when it became empty; after a restart the caller says so
        self.changes = Changes()
        self.initialized: dict[bytes, set[int]] = {}  # topic id -> partitions whose states have been begun
        self.upto = 0  # the offset of `__consumer_offsets` behind the record that says so
        self.stored_hash = 0  # of the topics that the stored epoch is for; only for restored
        self.session_seconds = session_seconds
        self.max_size = max_size
        self._resolve = resolve
        self._seen: dict[str, tuple[bytes, int]] = {}  # the subscribed topics that the epoch is for

    # ---- events

    def heartbeat(self, beat: ShareHeartbeat, now: float) -> Outcome:
        """A member joins, lives on, or leaves."""
        try:
            if beat.epoch == LEAVE_EPOCH:
                self._remove(self._known(beat.member_id).id, now)
                return Outcome(0, None, beat.member_id, beat.epoch)
            member = self._find(beat)
        except Refused as e:
            return Outcome(e.code, str(e))
        if self._update(member, beat) | self._refresh_topics():
            self._raise_epoch()
        if self.target_epoch < self.epoch:
            self._assign()
        before = member.assigned
        joining = beat.epoch == JOIN_EPOCH
        if member.epoch != self.target_epoch or joining:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch
            member.assigned = {topic: set(indexes) for topic, indexes in self.target.get(member.id, {}).items()}
            self.changes.current.add(member.id)
        member.deadline = now + self.session_seconds
        tell = joining or member.assigned != before
        return Outcome(0, None, member.id, member.epoch, member.assigned if tell else None)

    def tick(self, now: float) -> list[str]:
        """Time has passed: members whose session has ended are out; returns their ids."""
        gone = [member.id for member in self.members.values() if member.deadline <= now]
        for member_id in gone:
            self._remove(member_id, now)
        return gone

    def next_deadline(self) -> float | None:
        """When tick must be called next."""
        return min((member.deadline for member in self.members.values()), default=None)

    def check_commit(self, by: Committer, now: float) -> int:
        """Nobody commits offsets of a share group: it acknowledges records (ShareGroup.validateOffsetCommit)."""
        return errors.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Nobody reads committed offsets of a share group (ShareGroup.validateOffsetFetch)."""
        return errors.GROUP_ID_NOT_FOUND

    def check_offset_delete(self) -> int:
        """Nobody deletes them, either (ShareGroup.validateOffsetDelete)."""
        return errors.GROUP_ID_NOT_FOUND

    # ---- what it shows to everybody

    @property
    def state(self) -> str:
        """As ShareGroupDescribe and ListGroups name it."""
        return "Stable" if self.members else "Empty"

    @property
    def empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    # Its partitions' states stay until it is deleted: it does not expire (ShareGroup.shouldExpire).
    unused = False

    @property
    def emptied(self) -> float | None:
        """When its last member left; None while it has members."""
        return None if self.members else self.since

    def subscribed(self) -> set[str]:
        """Topics that members follow, existing or not."""
        return {name for member in self.members.values() for name in member.topics}

    def follows(self, topic: str) -> bool:
        """Whether members follow a topic."""
        return any(topic in member.topics for member in self.members.values())

    @property
    def metadata_hash(self) -> int:
        """Of the subscribed topics, their ids and partitions, as the present epoch knows them."""
        return topics_hash(self._seen)

    def restored(self, now: float) -> None:
        """After a restart: everybody gets a whole session."""
        for member in self.members.values():
            member.deadline = now + self.session_seconds
        wanted = self._wanted()
        # Topics may have changed after the last epoch was stored: then the next heartbeat must see a change.
        self._seen = wanted if topics_hash(wanted) == self.stored_hash else UNKNOWN_TOPICS

    # ---- members

    def _known(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None:
            raise Refused(errors.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.id}.")
        return member

    def _find(self, beat: ShareHeartbeat) -> ShareMember:
        """The member that a heartbeat is from, made if it joins. Raises Refused."""
        if beat.epoch == JOIN_EPOCH:
            if beat.member_id not in self.members:
                if len(self.members) >= self.max_size:
                    raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"The group {self.id} is full.")
                self.members[beat.member_id] = ShareMember(beat.member_id)
                self.changes.members.add(beat.member_id)
            return self.members[beat.member_id]
        member = self._known(beat.member_id)
        if beat.epoch not in (member.epoch, member.previous_epoch):  # its last answer may have been lost
            text = f"The share group member has the epoch {beat.epoch}; known is {member.epoch}. It must rejoin."
            raise Refused(errors.FENCED_MEMBER_EPOCH, text)
        return member

    def _remove(self, member_id: str, now: float) -> None:
        del self.members[member_id]
        self.target.pop(member_id, None)
        for changed in (self.changes.members, self.changes.current, self.changes.target):
            changed.add(member_id)
        self._seen = self._wanted()
        self._raise_epoch()
        if not self.members:
            self.since = now
            self.target_epoch = self.epoch
            self.changes.target_epoch = True

    def _update(self, member: ShareMember, beat: ShareHeartbeat) -> bool:
        """Take over what the heartbeat says of the member; whether it follows other topics now."""
        before = (member.rack_id, member.topics)
        member.rack_id = beat.rack_id if beat.rack_id is not None else member.rack_id
        topics = member.topics
        member.topics = beat.topics if beat.topics is not None else topics
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if (member.rack_id, member.topics) != before:
            self.changes.members.add(member.id)
        return member.topics != topics

    # ---- assigning

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self.changes.group = True

    def _wanted(self) -> dict[str, tuple[bytes, int]]:
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
            m.id: {self._seen[name][0] for name in m.topics if name in self._seen} for m in self.members.values()
        }
        target = simple(subscriptions, dict(self._seen.values()), self.target)
        for member_id in set(target) | set(self.target):
            if target.get(member_id) != self.target.get(member_id):
                self.changes.target.add(member_id)
        self.target, self.target_epoch = target, self.epoch
        self.changes.target_epoch = True
