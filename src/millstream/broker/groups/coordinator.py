"""Runs the groups: gives events to the state machines, writes what they want stored, answers when they say so.

Everything happens on the event loop; a write to ``__consumer_offsets`` is done when the call returns.
"""

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.groups import consumer_records, records
from millstream.broker.groups.classic import ClassicGroup, Effect, Joined, State, Store, Synced
from millstream.broker.groups.consumer import JOIN_EPOCH, LEAVE_EPOCH, Changes, ConsumerGroup, Heartbeat, Outcome
from millstream.broker.groups.offsets import Committed, Offsets, Where
from millstream.broker.internal_topics import InternalTopic, Write
from millstream.broker.patterns import PatternError, compile_pattern
from millstream.broker.topics import OFFSETS_TOPIC
from millstream.log import LogError
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.broker.broker import Broker

logger = logging.getLogger(__name__)
# A batch of tombstones or offsets has at most so many records, to stay below max.message.bytes.
WRITE_RECORDS = 1000


class GroupCoordinator:
    """All groups of the broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings = broker.settings
        self.store = InternalTopic(
            broker.log,
            OFFSETS_TOPIC,
            broker.settings.integer("offsets.topic.num.partitions"),
            broker.settings.integer("offsets.topic.segment.bytes"),
        )
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._topics: tuple[int, dict[str, tuple[bytes, int]]] = (-1, {})
        self._matches: dict[str, frozenset[str]] = {}
        self.offsets: dict[str, Offsets] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._cleanup: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild groups and offsets from the log."""
        now = self._broker.loop.time()
        open_offsets: dict[int, list[tuple[str, Where, Committed | None]]] = {}
        for record in self.store.replay():
            if record.ended is not None:
                for group_id, where, what in open_offsets.pop(record.producer_id, ()):
                    offsets = self.offsets.setdefault(group_id, Offsets())
                    pending = offsets.pending.get(record.producer_id)
                    if pending is not None:
                        pending.pop(where, None)
                        if not pending:
                            del offsets.pending[record.producer_id]
                    if record.ended and what is not None:
                        offsets.commit(where, what)
            elif record.type in (records.OFFSET_COMMIT, records.OFFSET_COMMIT_LEGACY):
                group_id, where, what = records.read_offset(record)
                offsets = self.offsets.setdefault(group_id, Offsets())
                if record.producer_id >= 0:
                    open_offsets.setdefault(record.producer_id, []).append((group_id, where, what))
                    if what is not None:
                        offsets.commit_pending(record.producer_id, where, what)
                elif what is None:
                    offsets.committed.pop(where, None)
                else:
                    offsets.commit(where, what)
            elif record.type == records.GROUP_METADATA:
                group_id, group = records.read_group(record, self._make, now)
                if group is None:
                    self.groups.pop(group_id, None)
                else:
                    self.groups[group_id] = group
                    self.consumers.pop(group_id, None)
            elif record.type in consumer_records.TYPES:
                group_id = consumer_records.read(record, self.consumers, self._make_consumer)
                if group_id in self.consumers:
                    self.groups.pop(group_id, None)
        self.offsets = {g: o for g, o in self.offsets.items() if o.committed or o.pending}
        for consumer in self.consumers.values():
            consumer.restore(now)
        for group_id in [*self.groups, *self.consumers]:
            self._schedule(group_id)
        self._cleanup_later()
        if self.groups or self.consumers or self.offsets:
            logger.info("%d groups, %d with offsets", len(self.groups) + len(self.consumers), len(self.offsets))

    def close(self) -> None:
        """End the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._cleanup is not None:
            self._cleanup.cancel()

    # ---- groups

    def _make(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id,
            lambda prefix: f"{prefix}-{uuid.uuid4()}",
            initial_delay=self._settings.seconds("group.initial.rebalance.delay.ms"),
            max_size=self._settings.integer("group.max.size"),
        )

    def classic(self, group_id: str, create: bool = False) -> ClassicGroup | None:
        """The classic group of an id; an empty group of the new protocol becomes one when asked to."""
        group = self.groups.get(group_id)
        if group is None and create:
            other = self.consumers.get(group_id)
            if other is not None and (other.members or self._write(group_id, consumer_records.removal(other))):
                return None
            self.consumers.pop(group_id, None)
            if self._full():
                return None
            group = self.groups[group_id] = self._make(group_id)
            group.since = self._broker.loop.time()
        return group

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
            token.set_result(effect)
        self._schedule(group.id)

    def _store_group(self, group: ClassicGroup) -> bool:
        now = self._broker.now_ms()
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
            self._timers[group_id] = self._broker.loop.call_at(deadline, self._tick, group_id)

    def _tick(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            for member_id in consumer.tick(self._broker.loop.time() + 0.001):
                logger.info("group %s: member %s is gone (session or rebalance timeout)", group_id, member_id)
            self._store_consumer(consumer)
            self._schedule(group_id)
        group = self.groups.get(group_id)
        if group is not None:
            # A timer may fire a little early; the machine compares times exactly.
            before = set(group.members)
            effects = group.tick(self._broker.loop.time() + 0.001)
            for member_id in before - set(group.members):
                logger.info("group %s: member %s is gone (session or rebalance timeout)", group_id, member_id)
            self.run(group, effects)

    # ---- groups of the new protocol

    def _make_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(
            group_id,
            self._existing,
            self._matching,
            session_seconds=self._settings.seconds("group.consumer.session.timeout.ms"),
            max_size=self._settings.integer("group.consumer.max.size"),
        )

    def _existing(self) -> dict[str, tuple[bytes, int]]:
        """The topics that exist, with ids and partitions; made again only when one came, went or grew."""
        version = self._broker.topics_version
        if self._topics[0] != version:
            topics = self._broker.log.topics
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
        outcome = group.heartbeat(beat, self._broker.loop.time())
        if not self._store_consumer(group):
            return Outcome(errors.COORDINATOR_NOT_AVAILABLE)
        if group_id not in self._timers:
            self._schedule(group_id)
        return outcome

    def _store_consumer(self, group: ConsumerGroup) -> bool:
        """Store what has changed; what could not be stored is tried again with the next change."""
        if not group.changes:
            return True
        now = self._broker.now_ms()
        if self._write(group.id, consumer_records.writes(group, now)):
            return False
        group.changes = Changes()
        return True

    def heard(self, group: ClassicGroup) -> None:
        """A member gave a sign of life: only an already running timer is needed, it looks again when it fires."""
        if group.id not in self._timers:
            self._schedule(group.id)

    def delete(self, group_id: str) -> int:
        """DeleteGroups of one group; the error code."""
        if not group_id:
            return errors.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        consumer = self.consumers.get(group_id)
        offsets = self.offsets.get(group_id)
        if group is None and offsets is None and consumer is None:
            return errors.GROUP_ID_NOT_FOUND
        if consumer is not None and consumer.members:
            return errors.NON_EMPTY_GROUP
        if group is not None and group.state not in (State.EMPTY, State.DEAD):
            return errors.NON_EMPTY_GROUP
        writes = [records.offset_write(group_id, where, None) for where in (offsets.committed if offsets else ())]
        if group is not None:
            writes.append(records.group_removal(group_id))
        if consumer is not None:
            writes += consumer_records.removal(consumer)
        error = self._write(group_id, writes)
        if not error:
            self.consumers.pop(group_id, None)
            self.offsets.pop(group_id, None)
            self.groups.pop(group_id, None)
            if group is not None:
                self.run(group, group.die())
        return error

    def _full(self) -> bool:
        """Whether there is no room for one more group."""
        return len(self.groups) + len(self.consumers) >= limits.MAX_GROUPS

    def no_classic(self, group_id: str) -> int:
        """The error of a classic request for a group that is not there (or not classic)."""
        if group_id in self.consumers:
            return errors.INCONSISTENT_GROUP_PROTOCOL
        return errors.GROUP_MAX_SIZE_REACHED if self._full() else errors.UNKNOWN_MEMBER_ID

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """LeaveGroup of a member of no classic group (an administrator removes static members so); the error code."""
        group = self.consumers.get(group_id)
        if group is None:
            return errors.UNKNOWN_MEMBER_ID
        if instance_id is not None and not member_id:
            member_id = group.static.get(instance_id, "")
        return self.consumer_heartbeat(group_id, Heartbeat(member_id, LEAVE_EPOCH, instance_id)).error

    def exists(self, group_id: str) -> bool:
        """Whether there is a group, if only by its offsets."""
        return group_id in self.groups or group_id in self.offsets or group_id in self.consumers

    def offsets_only(self, group_id: str) -> bool:
        """Whether a group exists only by offsets committed from outside."""
        return group_id in self.offsets and group_id not in self.groups and group_id not in self.consumers

    def subscribed(self, group_id: str) -> set[str] | None:
        """Topics that the members of a group follow; None when that cannot be known and the group is not empty."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            return consumer.subscribed()
        group = self.groups.get(group_id)
        if group is None or group.state in (State.EMPTY, State.DEAD):
            return set()
        if group.protocol_type != "consumer":
            return None
        return records.subscribed(group)

    def listing(self) -> list[tuple[str, str, str, str]]:
        """Id, protocol type, state and type of every group."""
        rows = [(g.id, g.protocol_type or "", str(g.state), "classic") for g in self.groups.values()]
        rows += [(g.id, "consumer", g.state, "consumer") for g in self.consumers.values()]
        rows += [(g, "", str(State.EMPTY), "classic") for g in self.offsets if self.offsets_only(g)]
        return rows

    # ---- offsets

    def check_commit(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Whether an OffsetCommit is allowed now; the error code."""
        if not group_id:
            return errors.INVALID_GROUP_ID
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            return consumer.check_commit(member_id, generation, older=True)
        group = self.groups.get(group_id)
        if group is None:
            if generation < 0 and group_id not in self.offsets and len(self.offsets) >= limits.MAX_GROUPS:
                return errors.GROUP_MAX_SIZE_REACHED
            if generation < 0:
                return errors.NONE  # a simple consumer: the group need not exist
            return errors.UNKNOWN_MEMBER_ID if group_id in self.offsets else errors.ILLEGAL_GENERATION
        error = group.check_commit(member_id, instance_id, generation, self._broker.loop.time())
        self.heard(group)
        return error

    def check_partition(self, group_id: str, member_id: str, epoch: int, topic_id: bytes, index: int) -> int:
        """Whether an OffsetCommit that check_commit let through is allowed for a partition; the error code."""
        consumer = self.consumers.get(group_id)
        return errors.NONE if consumer is None else consumer.check_partition(member_id, epoch, topic_id, index)

    def check_transactional_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> int:
        """Whether a TxnOffsetCommit is allowed now, as far as the group goes; the error code."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            return errors.NONE if generation < 0 and not member_id else consumer.check_commit(member_id, generation)
        group = self.groups.get(group_id)
        if group is None:
            return errors.NONE if generation < 0 else errors.ILLEGAL_GENERATION
        return group.check_transactional_commit(member_id, instance_id, generation)

    def place(self, group_id: str) -> Where:
        """The partition that holds the group's offsets; made if it is not there yet."""
        partition = self.store.partition(group_id)
        return partition.topic.name, partition.index

    def check_offset_fetch(self, group_id: str, member_id: str | None, epoch: int) -> int:
        """Whether an OffsetFetch is allowed; the error code."""
        consumer = self.consumers.get(group_id)
        if consumer is not None and member_id is not None and epoch >= 0:
            return consumer.check_commit(member_id, epoch)
        return errors.NONE if group_id or member_id is None else errors.INVALID_GROUP_ID

    def commit(self, group_id: str, commits: list[tuple[Where, Committed]]) -> int:
        """Store committed offsets; the error code."""
        error = self._write(group_id, [records.offset_write(group_id, where, what) for where, what in commits])
        if not error:
            offsets = self.offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit(where, what)
        return error

    def commit_pending(self, group_id: str, producer: tuple[int, int], commits: list[tuple[Where, Committed]]) -> int:
        """Store offsets inside a producer's transaction; the error code."""
        writes = [records.offset_write(group_id, where, what) for where, what in commits]
        error = self._write(group_id, writes, producer)
        if not error:
            offsets = self.offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit_pending(producer[0], where, what)
        return error

    def transaction_ended(self, producer_id: int, commit: bool) -> None:
        """The marker of a transaction is in the offsets topic."""
        for offsets in self.offsets.values():
            if producer_id in offsets.pending:
                offsets.end(producer_id, commit)

    def forget_offsets(self, group_id: str, places: list[Where]) -> int:
        """Remove committed offsets; the error code."""
        offsets = self.offsets.get(group_id)
        known = [where for where in places if offsets is not None and where in offsets.committed]
        error = self._write(group_id, [records.offset_write(group_id, where, None) for where in known])
        if not error and offsets is not None:
            for where in known:
                del offsets.committed[where]
        return error

    def topic_deleted(self, name: str) -> None:
        """Groups forget what they committed for a topic that is gone."""
        for group_id, offsets in list(self.offsets.items()):
            gone = [where for where in offsets.committed if where[0] == name]
            if gone:
                self.forget_offsets(group_id, gone)
            for pending in offsets.pending.values():
                for where in [w for w in pending if w[0] == name]:
                    del pending[where]

    def _write(self, group_id: str, writes: list[Write], producer: tuple[int, int] | None = None) -> int:
        now = self._broker.now_ms()
        try:
            for start in range(0, len(writes), WRITE_RECORDS):
                self.store.write(group_id, writes[start : start + WRITE_RECORDS], now, producer)
        except LogError as e:
            logger.error("offsets of group %s could not be stored: %s", group_id, e)
            return errors.COORDINATOR_NOT_AVAILABLE if producer is None or e.code == -1 else e.code
        return errors.NONE

    # ---- expiry

    def _cleanup_later(self) -> None:
        delay = self._settings.seconds("offsets.retention.check.interval.ms")
        self._cleanup = self._broker.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        """Drop offsets of groups that have been empty for offsets.retention.minutes, and groups left with nothing."""
        now = self._broker.now_ms()
        retention = self._settings.integer("offsets.retention.minutes") * 60_000
        for group_id, offsets in list(self.offsets.items()):
            group = self.groups.get(group_id)
            consumer = self.consumers.get(group_id)
            if (group is not None and group.state is not State.EMPTY) or (consumer is not None and consumer.members):
                continue
            cutoff = now - retention
            since = group.since if group is not None and group.protocol_type else consumer.since if consumer else None
            if since is not None:  # the clock starts when the group became empty
                if self._broker.loop.time() - since < retention / 1000:
                    continue
                cutoff = now + 1
            gone = offsets.expired(cutoff, now)
            if gone and not self.forget_offsets(group_id, gone):
                logger.info("group %s: %d offsets expired", group_id, len(gone))
        for group_id, group in list(self.groups.items()):
            left = self.offsets.get(group_id)
            if (
                group.state is State.EMPTY
                and not group.pending
                and (left is None or not (left.committed or left.pending))
            ):
                self.offsets.pop(group_id, None)
                del self.groups[group_id]
                self._write(group_id, [records.group_removal(group_id)])
        for group_id, consumer in list(self.consumers.items()):
            left = self.offsets.get(group_id)
            if not consumer.members and (left is None or not (left.committed or left.pending)):
                self.offsets.pop(group_id, None)
                del self.consumers[group_id]
                self._write(group_id, consumer_records.removal(consumer))
        self._cleanup_later()
