"""Carries out groups of the new protocol, with members of both: stores what has changed before it is answered, converts groups.

Source: Kafka's GroupMetadataManager; KIP-848.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.groups import consumer_classic, consumer_records, migration, records
from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_events import Join, Joined, Sync, Synced
from millstream.broker.groups.classic_groups import ClassicGroups, refused
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_members import JOIN_EPOCH, Changes, Heartbeat, Outcome
from millstream.broker.groups.directory import Directory
from millstream.broker.groups.migration import Policy
from millstream.broker.internal_topics import Replayed, Write
from millstream.broker.patterns import PatternError, compile_pattern
from millstream.broker.refused import Refused
from millstream.protocol import errors
from millstream.protocol.wire import ProtocolError

_log = logging.getLogger(__name__)
# A conversion that could not be stored is tried again after so long.
RETRY_SECONDS = 1.0


class ConsumerGroups:
    """All groups of the new protocol."""

    records = consumer_records.TYPES

    def __init__(self, core: Core, directory: Directory, classic: ClassicGroups) -> None:
        self._core = core
        self._directory = directory
        self._classic = classic
        self._settings = core.settings
        self._matched: dict[str, tuple[bytes, int]] = {}  # the topics among which the patterns were looked for
        self._matches: dict[str, frozenset[str]] = {}

    # ---- requests

    def find(self, group_id: str) -> ConsumerGroup | None:
        """The group of the new protocol of an id."""
        return self._directory.find(ConsumerGroup, group_id)

    def heartbeat(self, group_id: str, beat: Heartbeat) -> Outcome:
        """ConsumerGroupHeartbeat; the first one makes a group, or makes one of a classic group."""
        group = self.find(group_id)
        try:
            if group is None:
                return self._first(group_id, beat)
        except Refused as e:
            return Outcome(e.code, str(e))
        outcome = group.heartbeat(beat, self._core.loop.time())
        return self._stored(group, outcome)

    def join(self, group: ConsumerGroup, join: Join) -> asyncio.Future[Joined]:
        """JoinGroup of a classic member."""
        joined = consumer_classic.join(group, join, self._core.loop.time())
        token: asyncio.Future[Joined] = self._core.loop.create_future()
        self._answer(group, joined, token)
        return token

    def sync(self, group: ConsumerGroup, sync: Sync) -> asyncio.Future[Synced]:
        """SyncGroup of a classic member."""
        synced = consumer_classic.sync(group, sync, self._core.loop.time())
        token: asyncio.Future[Synced] = self._core.loop.create_future()
        self._answer(group, synced, token)
        return token

    def classic_heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat of a classic member; the error code."""
        error = consumer_classic.heartbeat(group, member_id, instance_id, generation, self._core.loop.time())
        self._directory.schedule(group.id)
        return error

    def leave(self, group: ConsumerGroup, members: list[tuple[str, str | None]]) -> list[int]:
        """LeaveGroup of members of either protocol; their error codes."""
        codes = consumer_classic.leave(group, members, self._core.loop.time())
        if not self._store(group):
            return [code or errors.COORDINATOR_NOT_AVAILABLE for code in codes]
        return codes

    def reconfigured(self, group_id: str) -> None:
        """A group's own settings have changed: they hold from its members' next heartbeats on."""
        group = self.find(group_id)
        if group is not None:
            group.session_seconds = self._session_seconds(group_id)

    # ---- groups that become one

    def _first(self, group_id: str, beat: Heartbeat) -> Outcome:
        """A heartbeat of a group that is not there, or classic. Raises Refused."""
        before = self._directory.groups.get(group_id)
        if beat.epoch != JOIN_EPOCH:
            raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if before is not None and not (before.empty and before.convertible):
            if isinstance(before, ClassicGroup):
                return self._upgrade(before, beat)
            raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if self._directory.vacate(group_id):
            raise Refused(errors.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} could not be stored.")
        if self._directory.full():
            raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"There are {limits.MAX_GROUPS} groups already.")
        group = self._directory.groups[group_id] = self._make(group_id)
        return self._stored(group, group.heartbeat(beat, self._core.loop.time()))

    def _upgrade(self, classic: ClassicGroup, beat: Heartbeat) -> Outcome:
        """A member of the new protocol joins a classic group with members. Raises Refused.

        Source: GroupMetadataManager.validateOnlineUpgrade, convertToConsumerGroup.
        """
        now, group = self._core.loop.time(), self._make(classic.id)
        if not self._policy.upgrades or classic.protocol_type != "consumer" or len(classic.members) > group.max_size:
            raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {classic.id} has members of the classic protocol.")
        try:
            migration.upgrade(classic, group, now)
        except ProtocolError as e:
            text = f"Group {classic.id} stays classic: what its members sent cannot be read ({e})."
            raise Refused(errors.GROUP_ID_NOT_FOUND, text) from None
        outcome = group.heartbeat(beat, now)
        if outcome.error:
            return outcome
        writes = [*self._classic.removal(classic), *consumer_records.writes(group)]
        if self._directory.write(group.id, writes):
            raise Refused(errors.COORDINATOR_NOT_AVAILABLE, f"Group {group.id} could not be stored.")
        group.changes = Changes()
        self._directory.groups[group.id] = group
        _log.info("group %s speaks the new protocol now, with %d classic members", group.id, len(group.members) - 1)
        self._classic.run(classic, classic.die(errors.REBALANCE_IN_PROGRESS))
        return outcome

    def _downgrade(self, group: ConsumerGroup, leaving: frozenset[str]) -> bool:
        """The last members of the new protocol go: the others have a classic group; whether that could be stored.

        Source: GroupMetadataManager.convertToClassicGroup.
        """
        now, classic = self._core.loop.time(), self._classic.make(group.id)
        try:
            migration.downgrade(group, classic, leaving, now)
        except ProtocolError as e:
            _log.warning("group %s does not become classic: what its members sent cannot be read (%s)", group.id, e)
            if leaving:
                group.remove(leaving, now)
            return self._store(group)
        writes = [*consumer_records.dissolution(group), records.group_write(classic, self._core.now_ms())]
        if self._directory.write(group.id, writes):
            for member_id in leaving:
                group.members[member_id].deadline = now + RETRY_SECONDS
            self._directory.schedule(group.id)
            return False
        self._directory.groups[group.id] = classic
        _log.info("group %s speaks the classic protocol now, with %d members", group.id, len(classic.members))
        self._classic.run(classic, classic.rebalance(now) if leaving else [])
        return True

    @property
    def _policy(self) -> Policy:
        return Policy(self._settings.values["group.consumer.migration.policy"])

    # ---- what follows

    def _stored(self, group: ConsumerGroup, outcome: Outcome) -> Outcome:
        return outcome if self._store(group) else Outcome(errors.COORDINATOR_NOT_AVAILABLE)

    def _answer(self, group: ConsumerGroup, effect: Joined | Synced, token: asyncio.Future[Any]) -> None:
        self._classic.answer(group.id, effect if self._store(group) or effect.error else refused(effect), token)

    def _store(self, group: ConsumerGroup) -> bool:
        """Store what has changed, and watch the clocks; what could not be stored is tried again with the next change."""
        if group.leaving is not None:
            leaving, group.leaving = group.leaving, None
            return self._downgrade(group, leaving)
        self._directory.schedule(group.id)
        if not group.changes:
            return True
        if self._directory.write(group.id, consumer_records.writes(group)):
            return False
        group.changes = Changes()
        return True

    def _make(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            self._directory.topics,
            self._matching,
            session_seconds=self._session_seconds(group_id),
            max_size=self._settings.integer("group.consumer.max.size"),
            max_classic=self._settings.integer("group.max.size") if self._policy.downgrades else 0,
        )

    def _session_seconds(self, group_id: str) -> float:
        return self._core.dynamic.of_group(group_id, "consumer.session.timeout.ms") / 1000

    def _matching(self, regex: str) -> frozenset[str]:
        """The topics that a regular expression matches."""
        existing = self._directory.topics()
        if existing is not self._matched:
            self._matched = existing
            self._matches.clear()
        found = self._matches.get(regex)
        if found is None:
            try:
                pattern = compile_pattern(regex)
            except PatternError:  # stored by an earlier version that took it
                return frozenset()
            found = self._matches[regex] = frozenset(name for name in existing if pattern.fullmatch(name))
        return found

    # ---- what all kinds do

    def read(self, record: Replayed, written: float) -> None:
        """A record of a group, read back at start."""
        group_id = consumer_records.group_of(record)
        group = self.find(group_id)
        if consumer_records.ends(record):
            if group is not None:
                del self._directory.groups[group_id]
            return
        if group is None:
            if record.value is None:
                return
            group = self._directory.groups[group_id] = self._make(group_id)
        consumer_records.read(record, group)
        if record.type == consumer_records.GROUP:  # the last one of an empty group: its last member left
            group.since = written

    def removal(self, group: ConsumerGroup) -> list[Write]:
        """The records that say that an empty group is gone."""
        return consumer_records.removal(group)

    def removed(self, group: ConsumerGroup) -> None:
        """Nobody waits for one."""

    def tick(self, group: ConsumerGroup, now: float) -> None:
        """Sessions or time limits of members may have ended."""
        self._directory.log_gone(group, group.tick(now))
        self._store(group)
