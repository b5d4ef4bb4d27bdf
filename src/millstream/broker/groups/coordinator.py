"""The groups of the broker from its start to its end: read back from the log, deleted, expired.

Everything happens on the event loop; a write to ``__consumer_offsets`` is done when the call returns. What must also be on
disk before it is answered stands in commits.py, and for groups themselves in running.py.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from millstream.broker.groups import consumer_records, records
from millstream.broker.groups.classic import State
from millstream.broker.groups.commits import Commits
from millstream.broker.groups.offsets import Offsets
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.broker.broker import Broker

logger = logging.getLogger(__name__)


class GroupCoordinator(Commits):
    """All groups of the broker: their members (Running) and their offsets (Commits)."""

    def __init__(self, broker: "Broker") -> None:
        super().__init__(broker)
        self._cleanup: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild groups and offsets from the log."""
        now = self._broker.loop.time()
        for record in self.store.replay():
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
                    self.groups[group_id] = group
                    self.consumers.pop(group_id, None)
            elif record.type in consumer_records.TYPES:
                group_id = consumer_records.read(record, self.consumers, self._make_consumer)
                if group_id in self.consumers:
                    self.groups.pop(group_id, None)
        self.offsets = {g: o for g, o in self.offsets.items() if o}
        if self.store.durable or self._broker.log.has_commit:
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
        self._cleanup = self._broker.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        """Drop offsets that nobody used for offsets.retention.minutes, and empty groups left with nothing.

        The time of a group that has had members counts from when the last one left; in groups that have some, offsets
        of topics that no member follows expire by the time of their commit (ClassicGroup, ConsumerGroup:
        offsetExpirationCondition; for an empty consumer group of the new protocol Kafka counts from the commit, too).
        """
        now = self._broker.now_ms()
        retention = self._settings.integer("offsets.retention.minutes") * 60_000
        for group_id, offsets in list(self.offsets.items()):
            group = self.groups.get(group_id)
            consumer = self.consumers.get(group_id)
            if (
                group is not None
                and group.state is not State.EMPTY
                and (group.state is not State.STABLE or group.topics is None)
            ):
                continue  # what its members follow is not known now
            cutoff = now - retention
            since = None
            if group is not None and group.state is State.EMPTY and group.protocol_type:
                since = group.since
            elif consumer is not None and not consumer.members:
                since = consumer.since
            if since is not None:  # the clock starts when the group became empty
                if self._broker.loop.time() - since < retention / 1000:
                    continue
                cutoff = now + 1
            gone = [where for where in offsets.expired(cutoff, now) if not self.follows(group_id, where[0])]
            if gone and not self.forget_offsets(group_id, gone):
                logger.info("group %s: %d offsets expired", group_id, len(gone))
        for group_id, group in list(self.groups.items()):
            left = self.offsets.get(group_id)
            if group.state is State.EMPTY and not group.pending and not left:
                self.offsets.pop(group_id, None)
                del self.groups[group_id]
                self._write(group_id, [records.group_removal(group_id)])
        for group_id, consumer in list(self.consumers.items()):
            left = self.offsets.get(group_id)
            if not consumer.members and not left:
                self.offsets.pop(group_id, None)
                del self.consumers[group_id]
                self._write(group_id, consumer_records.removal(consumer))
        self._cleanup_later()
