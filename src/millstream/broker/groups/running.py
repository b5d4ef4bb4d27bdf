"""Runs the members: gives their events to the state machines, stores what those want stored, answers when they say so.

Answers wait for the disk only where ``__consumer_offsets`` itself is ``commit`` (``Directory.unanswered``): a generation or a
member epoch that a power cut takes back fences its members, and they join again.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.core import Core
from millstream.broker.groups import consumer_records, records
from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.classic_events import Effect, Joined, Store, Synced
from millstream.broker.groups.classic_members import State
from millstream.broker.groups.consumer import JOIN_EPOCH, LEAVE_EPOCH, Changes, ConsumerGroup, Heartbeat, Outcome
from millstream.broker.groups.directory import Directory
from millstream.broker.patterns import PatternError, compile_pattern
from millstream.log import LogError
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

logger = logging.getLogger(__name__)


class Running(Directory):
    """The members of all groups, and the timers that watch them."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._topics: tuple[int, dict[str, tuple[bytes, int]]] = (-1, {})
        self._matches: dict[str, frozenset[str]] = {}

    # ---- classic groups

    def run(self, group: ClassicGroup, effects: list[Effect]) -> None:
        """Carry out effects in order, and watch the group's next deadline."""
        stored = True
        for effect in effects:
            if isinstance(effect, Store):
                stored = self._store_group(group)
                continue
            token = effect.token
            assert isinstance(token, asyncio.Future)
            if token.done():
                continue
            if not stored and effect.error == errors.NONE:
                effect = (
                    Joined(token, errors.COORDINATOR_NOT_AVAILABLE, effect.member_id)
                    if isinstance(effect, Joined)
                    else Synced(token, errors.COORDINATOR_NOT_AVAILABLE)
                )
            unsynced = [] if effect.error else self.unanswered(group.id)
            if unsynced:
                self._answer_later(effect, token, unsynced)
            else:
                token.set_result(effect)
        self._schedule(group.id)

    def _answer_later(
        self, effect: Joined | Synced, token: "asyncio.Future[Joined | Synced]", unsynced: "list[Partition]"
    ) -> None:
        """Answer when the group is on disk."""

        def synced(future: "asyncio.Future[dict[Partition, str]]") -> None:
            if token.done():  # the connection is closed
                return
            if not future.result():
                token.set_result(effect)
            elif isinstance(effect, Joined):
                token.set_result(Joined(token, errors.COORDINATOR_NOT_AVAILABLE, effect.member_id))
            else:
                token.set_result(Synced(token, errors.COORDINATOR_NOT_AVAILABLE))

        self._core.flusher.synced(unsynced).add_done_callback(synced)

    def _store_group(self, group: ClassicGroup) -> bool:
        now = self._core.now_ms()
        try:
            self.store.write(group.id, [records.group_write(group, now)], now)
        except LogError as e:
            logger.error("group %s could not be stored: %s", group.id, e)
            return False
        return True

    def _schedule(self, group_id: str) -> None:
        timer = self._timers.pop(group_id, None)
        if timer is not None:
            timer.cancel()
        group = self.groups.get(group_id) or self.consumers.get(group_id)
        deadline = group.next_deadline() if group is not None else None
        if deadline is not None:
            self._timers[group_id] = self._core.loop.call_at(deadline, self._tick, group_id)

    def _tick(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            for member_id in consumer.tick(self._core.loop.time() + 0.001):
                logger.info("group %s: member %s is gone (session or rebalance timeout)", group_id, member_id)
            self._store_consumer(consumer)
            self._schedule(group_id)
        group = self.groups.get(group_id)
        if group is not None:
            # A timer may fire a little early; the machine compares times exactly.
            before = set(group.members)
            effects = group.tick(self._core.loop.time() + 0.001)
            for member_id in before - set(group.members):
                logger.info("group %s: member %s is gone (session or rebalance timeout)", group_id, member_id)
            self.run(group, effects)

    # ---- groups of the new protocol

    def _make_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            self._existing,
            self._matching,
            session_seconds=self._session_seconds(group_id),
            max_size=self._settings.integer("group.consumer.max.size"),
        )

    def reconfigured(self, group_id: str) -> None:
        """A group's own settings have changed: they hold from its members' next heartbeats on."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            consumer.session_seconds = self._session_seconds(group_id)

    def _session_seconds(self, group_id: str) -> float:
        return self._core.dynamic.of_group(group_id, "consumer.session.timeout.ms") / 1000

    def _existing(self) -> dict[str, tuple[bytes, int]]:
        """The topics that exist, with ids and partitions; made again only when one came, went or grew."""
        version = self._core.topics_version
        if self._topics[0] != version:
            topics = self._core.log.topics
            self._topics = (version, {n: (t.id.bytes, len(t.partitions)) for n, t in topics.items()})
            self._matches.clear()
        return self._topics[1]

    def _matching(self, regex: str) -> frozenset[str]:
        """The topics that a regular expression matches."""
        existing = self._existing()
        found = self._matches.get(regex)
        if found is None:
            try:
                pattern = compile_pattern(regex)
            except PatternError:  # stored by an earlier version that took it
                return frozenset()
            found = self._matches[regex] = frozenset(name for name in existing if pattern.fullmatch(name))
        return found

    def consumer_heartbeat(self, group_id: str, beat: Heartbeat) -> Outcome:
        """ConsumerGroupHeartbeat; an empty classic group becomes one of the new protocol."""
        group = self.consumers.get(group_id)
        if group is None:
            classic = self.groups.get(group_id)
            if classic is not None and classic.state not in (State.EMPTY, State.DEAD):
                text = f"Group {group_id} has members of the classic protocol."
                return Outcome(errors.GROUP_ID_NOT_FOUND, text)
            if beat.epoch != JOIN_EPOCH:
                return Outcome(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            if classic is not None:
                if self._write(group_id, [records.group_removal(group_id)]):
                    return Outcome(errors.COORDINATOR_NOT_AVAILABLE)
                del self.groups[group_id]
            if self._full():
                return Outcome(errors.GROUP_MAX_SIZE_REACHED, f"There are {limits.MAX_GROUPS} groups already.")
            group = self.consumers[group_id] = self._make_consumer(group_id)
        outcome = group.heartbeat(beat, self._core.loop.time())
        if not self._store_consumer(group):
            return Outcome(errors.COORDINATOR_NOT_AVAILABLE)
        if group_id not in self._timers:
            self._schedule(group_id)
        return outcome

    def _store_consumer(self, group: ConsumerGroup) -> bool:
        """Store what has changed; what could not be stored is tried again with the next change."""
        if not group.changes:
            return True
        now = self._core.now_ms()
        if self._write(group.id, consumer_records.writes(group, now)):
            return False
        group.changes = Changes()
        return True

    def heard(self, group: ClassicGroup) -> None:
        """A member gave a sign of life: only an already running timer is needed, it looks again when it fires."""
        if group.id not in self._timers:
            self._schedule(group.id)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of a member of no classic group (an administrator removes static members so); the error code."""
        group = self.consumers.get(group_id)
        if group is None:
            return errors.UNKNOWN_MEMBER_ID
        if instance_id is not None and not member_id:
            member_id = group.static.get(instance_id, "")
        return self.consumer_heartbeat(group_id, Heartbeat(member_id, LEAVE_EPOCH, instance_id)).error
