"""Carries out classic groups: gives their events to the state machines, stores what those want stored, answers when they say so.

Answers wait for the disk only where `__consumer_offsets` itself is `commit` (`Directory.unanswered`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.groups import records
from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_events import Effect, Join, Joined, Store, Sync, Synced
from millstream.broker.groups.directory import Directory
from millstream.broker.internal_topics import Replayed, Write
from millstream.broker.refused import Refused
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

_log = logging.getLogger(__name__)


class ClassicGroups:
    """All groups of the classic protocol."""

    records = frozenset({records.GROUP_METADATA})

    def __init__(self, core: Core, directory: Directory) -> None:
        self._core = core
        self._directory = directory
        self._settings = core.settings

    # ---- requests

    def find(self, group_id: str) -> ClassicGroup | None:
        """The classic group of an id."""
        return self._directory.find(ClassicGroup, group_id)

    def found(self, group_id: str) -> ClassicGroup:
        """The classic group of an id; made if there is none, or only an empty one of the new protocol. Raises Refused."""
        group = self.find(group_id)
        if group is None:
            if error := self._directory.vacate(group_id):
                raise Refused(error, f"Group {group_id} is not a classic group.")
            if self._directory.full():
                raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"There are {limits.MAX_GROUPS} groups already.")
            group = self._directory.groups[group_id] = self.make(group_id)
            group.since = self._core.loop.time()
        return group

    def join(self, group_id: str, join: Join) -> asyncio.Future[Joined]:
        """JoinGroup of a group that is classic, or not there; answered when the rebalance is done."""
        token: asyncio.Future[Joined] = self._core.loop.create_future()
        try:
            other = self._directory.groups.get(group_id)
            if join.member_id and (other is None or (other.convertible and other.kind != "classic")):
                raise Refused(errors.UNKNOWN_MEMBER_ID, "Only a member without an id makes a group.")
            group = self.found(group_id)
        except Refused as e:
            token.set_result(Joined(token, e.code, join.member_id))
        else:
            self.run(group, group.join(join, token, self._core.loop.time()))
        return token

    def sync(self, group_id: str, sync: Sync) -> asyncio.Future[Synced]:
        """SyncGroup; answered when the leader has brought the assignments."""
        token: asyncio.Future[Synced] = self._core.loop.create_future()
        group = self.find(group_id)
        if group is None:
            token.set_result(Synced(token, errors.UNKNOWN_MEMBER_ID))
        else:
            self.run(group, group.sync(sync, token, self._core.loop.time()))
        return token

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat; the error code."""
        group = self.find(group_id)
        if group is None:
            return errors.UNKNOWN_MEMBER_ID
        error = group.heartbeat(member_id, instance_id, generation, self._core.loop.time())
        self._directory.watch(group_id)
        return error

    def leave(self, group_id: str, members: list[tuple[str, str | None]]) -> list[int]:
        """LeaveGroup of members (id and instance id); their error codes."""
        group = self.find(group_id)
        if group is None:
            return [errors.UNKNOWN_MEMBER_ID] * len(members)
        codes, effects = group.leave(members, self._core.loop.time())
        self.run(group, effects)
        return codes

    # ---- what follows

    def make(self, group_id: str) -> ClassicGroup:
        """A new group, not yet in the directory."""
        return ClassicGroup(
            group_id,
            lambda prefix: f"{prefix}-{uuid.uuid4()}",
            initial_delay=self._settings.seconds("group.initial.rebalance.delay.ms"),
            max_size=self._settings.integer("group.max.size"),
        )

    def run(self, group: ClassicGroup, effects: list[Effect]) -> None:
        """Carry out effects in order, and watch the group's next deadline."""
        stored = True
        for effect in effects:
            if isinstance(effect, Store):
                stored = not self._directory.write(group.id, [records.group_write(group, self._core.now_ms())])
                continue
            token = effect.token
            assert isinstance(token, asyncio.Future)
            if token.done():
                continue
            if not stored and effect.error == errors.NONE:
                effect = refused(effect)
            self.answer(group.id, effect, token)
        self._directory.schedule(group.id)

    def answer(self, group_id: str, effect: Joined | Synced, token: asyncio.Future[Any]) -> None:
        """Answer a request, when what is stored of the group is as safe as it has to be."""
        unsynced = [] if effect.error else self._directory.unanswered(group_id)
        if not unsynced:
            token.set_result(effect)
            return

        def synced(future: asyncio.Future[dict[Partition, str]]) -> None:
            if not token.done():  # else the connection is closed
                token.set_result(refused(effect) if future.result() else effect)

        self._core.flusher.synced(unsynced).add_done_callback(synced)

    # ---- what all kinds do

    def read(self, record: Replayed, written: float) -> None:
        """A group's generation and members, or its end."""
        group_id, group = records.read_group(record, self.make, self._core.loop.time())
        if group is not None:
            group.since = written
            self._directory.groups[group_id] = group
        elif self.find(group_id) is not None:
            del self._directory.groups[group_id]

    def removal(self, group: ClassicGroup) -> list[Write]:
        """The record that says that a group is gone."""
        return [records.group_removal(group.id)]

    def removed(self, group: ClassicGroup) -> None:
        """Answer whoever waits."""
        self.run(group, group.die())

    def tick(self, group: ClassicGroup, now: float) -> None:
        """Members' sessions, a rebalance, or ids that were given out may have ended."""
        before = set(group.members)
        effects = group.tick(now)
        self._directory.log_gone(group, before - set(group.members))
        self.run(group, effects)


def refused(effect: Joined | Synced) -> Joined | Synced:
    """The answer when the group could not be stored."""
    if isinstance(effect, Joined):
        return Joined(effect.token, errors.COORDINATOR_NOT_AVAILABLE, effect.member_id)
    return Synced(effect.token, errors.COORDINATOR_NOT_AVAILABLE)
