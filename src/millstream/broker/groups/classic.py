"""The classic group protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as a pure state machine.

Events are method calls that carry the time; what follows from them comes back as effects: answers to requests (named by
tokens that the caller chose) and writes of the group's metadata, to be carried out in order. Nothing here waits: the
caller asks for `next_deadline` and calls `tick` then.

Source: Kafka's GroupMetadataManager and ClassicGroup; KIP-345 (static members), KIP-394 (member ids are given before
joining), KIP-800 (reasons), KIP-814 (a static leader that returns skips the assignment).
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.groups.classic_events import Effect, Join, Joined, Store, Sync, Synced, Token
from millstream.broker.groups.classic_members import Member, State
from millstream.broker.groups.classic_rebalance import Rebalance
from millstream.broker.groups.group import Committer
from millstream.broker.limits import MAX_PENDING_MEMBERS
from millstream.protocol import errors

# A new member's JoinGroup waits at most this long for the rebalance: its client may be gone (Kafka: 5 minutes).
NEW_MEMBER_JOIN_SECONDS = 300.0


class ClassicGroup(Rebalance):
    """One group. `new_id` makes member ids from a client id or instance id."""

    def __init__(
        self, group_id: str, new_id: Callable[[str], str], *, initial_delay: float = 0.0, max_size: int = 0x7FFFFFFF
    ) -> None:
        super().__init__(group_id, initial_delay)
        self.max_size = max_size
        self._new_id = new_id

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

    def sync(self, sync: Sync, token: Token, now: float) -> list[Effect]:
        """SyncGroup; the leader's brings everybody's assignment."""
        member_id = sync.member_id
        error = self._check(member_id, sync.instance_id, sync.generation)
        if error:
            return [Synced(token, error)]
        if (sync.protocol_type is not None and sync.protocol_type != self.protocol_type) or (
            sync.protocol is not None and sync.protocol != self.protocol
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
                each.assignment = sync.assignments.get(each.id, b"")
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

    def check_commit(self, by: Committer, now: float) -> int:
        """Whether offsets may be committed now (an empty group takes commits from outside: generation -1).

        Source: ClassicGroup.validateOffsetCommit.
        """
        if by.epoch < 0 and self.state is State.EMPTY:
            return errors.NONE  # whatever member it names
        if by.transactional and by.unnamed and by.epoch < 0 and self.state is not State.DEAD:
            return errors.NONE
        error = self._check(by.member_id, by.instance_id, by.epoch)
        if error or by.transactional:
            return error
        self._touch(self.members[by.member_id], now)
        return errors.REBALANCE_IN_PROGRESS if self.state is State.COMPLETING else errors.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> int:
        """Every OffsetFetch is allowed."""
        return errors.NONE

    def check_offset_delete(self) -> int:
        """Whether offsets may be deleted now (ClassicGroup.validateOffsetDelete); `follows` says of which topics."""
        if self.state is State.DEAD:
            return errors.GROUP_ID_NOT_FOUND
        kept = self.state is not State.EMPTY and self.protocol_type != "consumer"
        return errors.NON_EMPTY_GROUP if kept else errors.NONE

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
