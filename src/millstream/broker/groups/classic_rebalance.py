"""How a classic group comes from one generation to the next, and what its clocks do to it: sessions, rebalances, ids not used."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.broker.groups.classic_events import Effect, Store, Synced
from millstream.broker.groups.classic_members import Members, State
from millstream.protocol import errors


@dataclass(slots=True)
class InitialRebalance:
    """The rebalance of a group that was empty: it ends at its own time, with those who have come by then.

    Each time that members came meanwhile it waits once more, within the rebalance timeout
    (GroupMetadataManager.tryCompleteInitialRebalanceElseSchedule).
    """

    deadline: float
    left: float  # seconds that it may still be put off
    grew: bool = False


class Rebalance(Members):
    """The group as it changes: members are lost or awaited, generations begin."""

    def __init__(self, group_id: str, initial_delay: float) -> None:
        super().__init__(group_id)
        self.initial_delay = initial_delay
        self._join_deadline = 0.0  # the rebalance ends now, with or without those who are missing
        self._initial: InitialRebalance | None = None  # set while a group that was empty gathers members
        self._sync_deadline = 0.0

    # ---- time

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

    def rebalance(self, now: float) -> list[Effect]:
        """Begin a rebalance that no request has asked for."""
        return self._prepare(now)

    def _expire(self, now: float) -> list[Effect]:
        """Remove members whose session has ended."""
        effects: list[Effect] = []
        for member in list(self.members.values()):
            waits = (member.joining is not None and not member.new) or member.syncing is not None
            if member.deadline <= now and not waits and member.id in self.members:
                effects += self._remove(member.id, now, expired=True)
        return effects

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

    def _remove(self, member_id: str, now: float, expired: bool = False) -> list[Effect]:
        """A member is lost."""
        return self._drop(member_id) + self._go_on(now, expired)

    def _go_on(self, now: float, expired: bool = False) -> list[Effect]:
        """Members are gone: the others rebalance, or need not wait for them."""
        if self.state in (State.STABLE, State.COMPLETING):
            return self._prepare(now)
        return self._maybe_complete(now, expired)
