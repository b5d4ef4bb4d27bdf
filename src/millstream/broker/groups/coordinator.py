"""The groups of the broker from its start to its end: read back from the log, deleted, expired.

Everything happens on the event loop; a write to ``__consumer_offsets`` is done when the call returns. What must also be on
disk before it is answered stands in commits.py, and for groups themselves in running.py.
"""

import asyncio
import logging

from millstream.broker.core import Core
from millstream.broker.groups import consumer_records, records
from millstream.broker.groups.classic_members import State
from millstream.broker.groups.commits import Commits
from millstream.broker.groups.offsets import Offsets
from millstream.broker.internal_topics import Write
from millstream.protocol import errors

logger = logging.getLogger(__name__)
# Times of commits: one that none has reached, and one that all have.
NEVER, ALWAYS = -1, 0x7FFFFFFFFFFFFFFF


class GroupCoordinator(Commits):
    """All groups of the broker: their members (Running) and their offsets (Commits)."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._cleanup: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild groups and offsets from the log."""
        now, wall = self._core.loop.time(), self._core.now_ms()
        for record in self.store.replay():
            written = now - max(0, wall - record.at) / 1000
            if record.ended is not None:
                self.transaction_ended(record.producer_id, record.ended, record.partition, durable=False)
            elif record.type in (records.OFFSET_COMMIT, records.OFFSET_COMMIT_LEGACY):
                group_id, where, what = records.read_offset(record)
                offsets = self.offsets.setdefault(group_id, Offsets())
                if what is None:
                    offsets.forget(where)
                elif record.producer_id >= 0:
                    offsets.commit_pending(record.producer_id, where, what)
                    self.writers.setdefault(record.producer_id, set()).add(group_id)
                else:
                    offsets.commit(where, what)
            elif record.type == records.GROUP_METADATA:
                group_id, group = records.read_group(record, self._make, now)
                if group is None:
                    self.groups.pop(group_id, None)
                else:
                    group.since = written
                    self.groups[group_id] = group
                    self.consumers.pop(group_id, None)
            elif record.type in consumer_records.TYPES:
                group_id = consumer_records.read(record, self.consumers, self._make_consumer)
                if group_id in self.consumers:
                    self.groups.pop(group_id, None)
                    if record.type == consumer_records.GROUP:  # the last one of an empty group: its last member left
                        self.consumers[group_id].since = written
        self.offsets = {g: o for g, o in self.offsets.items() if o}
        if self.store.durable or self._core.log.has_commit:
            for group_id, left in self.offsets.items():  # what a killed broker wrote need not be synced yet
                left.upto = self.store.partition(group_id).end_offset
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

    # ---- the end of a group

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
        writes = [records.offset_write(group_id, where, None) for where in (offsets.places() if offsets else ())]
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

    def _cleanup_later(self) -> None:
        delay = self._settings.seconds("offsets.retention.check.interval.ms")
        self._cleanup = self._core.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        """Drop offsets that nobody used for offsets.retention.minutes, and empty groups left with nothing.

        Source: OffsetMetadataManager.cleanupExpiredOffsets, GroupCoordinatorShard.cleanupGroupMetadata.
        """
        now = self._core.now_ms()
        for group_id, offsets in list(self.offsets.items()):
            cutoff = self._cutoff(group_id, now)
            if cutoff is None:
                continue
            gone = [where for where in offsets.expired(cutoff, now) if not self.follows(group_id, where[0])]
            if gone and not self.forget_offsets(group_id, gone):
                logger.info("group %s: %d offsets expired", group_id, len(gone))
            if not offsets and self.offsets_only(group_id):
                del self.offsets[group_id]
        for group_id, group in list(self.groups.items()):
            if group.state is State.EMPTY and not group.pending and not self.offsets.get(group_id):
                self._vanish(group_id, [records.group_removal(group_id)])
        for group_id, consumer in list(self.consumers.items()):
            if not consumer.members and not self.offsets.get(group_id):
                self._vanish(group_id, consumer_records.removal(consumer))
        self._cleanup_later()

    def _cutoff(self, group_id: str, now: int) -> int | None:
        """Offsets of the group that were committed until then are old; None: what its members follow is not known now.

        A group that had members and has none keeps its offsets for a while from when the last one left; others, topics
        that no member follows among them, from each commit (ClassicGroup.offsetExpirationCondition; in an empty group of
        the new protocol Kafka counts from the commits, too: it forgets what may be needed when members come back).
        """
        retention = self._settings.integer("offsets.retention.minutes") * 60_000
        group, consumer = self.groups.get(group_id), self.consumers.get(group_id)
        if group is not None and group.state is not State.EMPTY:
            known = group.state is State.STABLE and group.topics is not None
            return now - retention if known else None
        if group is not None and group.protocol_type:
            since = group.since
        elif consumer is not None and not consumer.members:
            since = consumer.since
        else:
            return now - retention
        return ALWAYS if self._core.loop.time() - since >= retention / 1000 else NEVER

    def _vanish(self, group_id: str, removal: list[Write]) -> None:
        """Remove a group that has neither members nor offsets; if that cannot be stored, another time."""
        if not self._write(group_id, removal):
            self.groups.pop(group_id, None)
            self.consumers.pop(group_id, None)
            self.offsets.pop(group_id, None)
