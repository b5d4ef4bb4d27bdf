"""The groups of the broker from its start to its end: read back from the log, deleted, expired.

Everything happens on the event loop; a write to `__consumer_offsets` is done when the call returns. What must also be on
disk before it is answered stands in commits.py, and for groups themselves in directory.py.
"""

from __future__ import annotations

import asyncio
import logging

from millstream.broker.core import Core
from millstream.broker.groups import records
from millstream.broker.groups.classic_events import Join, Joined, Sync, Synced
from millstream.broker.groups.classic_groups import ClassicGroups
from millstream.broker.groups.commits import Commits
from millstream.broker.groups.consumer import ConsumerGroup
from millstream.broker.groups.consumer_groups import ConsumerGroups
from millstream.broker.groups.directory import Directory
from millstream.broker.groups.group import Group
from millstream.broker.groups.share_groups import ShareGroups
from millstream.broker.share.coordinator import SharePartitions
from millstream.broker.share.store import States
from millstream.protocol import errors

_log = logging.getLogger(__name__)
# Times of commits: one that none has reached, and one that all have.
NEVER, ALWAYS = -1, 0x7FFFFFFFFFFFFFFF


class GroupCoordinator:
    """All groups of the broker, by kind, and their offsets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.settings
        self.directory = Directory(core)
        self.classic = ClassicGroups(core, self.directory)
        self.consumer = ConsumerGroups(core, self.directory, self.classic)
        self.share_states = States(core)
        self.share_partitions = SharePartitions(core, self.directory, self.share_states)
        self.share = ShareGroups(core, self.directory, self.share_partitions)
        self.directory.kinds.update(classic=self.classic, consumer=self.consumer, share=self.share)
        self.commits = Commits(core, self.directory, self.classic)
        self._cleanup: asyncio.TimerHandle | None = None

    # ---- start and end

    def load(self) -> None:
        """Rebuild groups and offsets from the log."""
        now, wall = self._core.loop.time(), self._core.now_ms()
        kinds = {number: kind for kind in self.directory.kinds.values() for number in kind.records}
        for record in self.directory.store.replay():
            if record.ended is not None or record.type in records.OFFSETS:
                self.commits.read(record)
            elif (kind := kinds.get(record.type)) is not None:
                kind.read(record, now - max(0, wall - record.at) / 1000)
        self.commits.loaded()
        self.share.loaded()
        for group in self.directory.groups.values():
            group.restored(now)
            self.directory.schedule(group.id)
        self._cleanup_later()
        if self.directory.groups or self.directory.offsets:
            _log.info("%d groups, %d with offsets", len(self.directory.groups), len(self.directory.offsets))

    def close(self) -> None:
        """End the timers."""
        self.directory.close()
        self.share_partitions.end()
        self.share_states.close()
        if self._cleanup is not None:
            self._cleanup.cancel()

    # ---- what there is

    def listing(self) -> list[tuple[str, str, str, str]]:
        """Id, protocol type, state and type of every group."""
        rows = [(g.id, g.protocol_type or "", str(g.state), g.kind) for g in self.directory.groups.values()]
        rows += [(g, "", "Empty", "classic") for g in self.directory.offsets if self.directory.offsets_only(g)]
        return rows

    # ---- the classic protocol, which members of both kinds of groups speak

    def join(self, group_id: str, join: Join) -> asyncio.Future[Joined]:
        """JoinGroup."""
        group = self.directory.find(ConsumerGroup, group_id)
        if group is not None and not group.empty:
            return self.consumer.join(group, join)
        return self.classic.join(group_id, join)

    def sync(self, group_id: str, sync: Sync) -> asyncio.Future[Synced]:
        """SyncGroup."""
        group = self.directory.find(ConsumerGroup, group_id)
        return self.classic.sync(group_id, sync) if group is None else self.consumer.sync(group, sync)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Heartbeat; the error code."""
        group = self.directory.find(ConsumerGroup, group_id)
        if group is None:
            return self.classic.heartbeat(group_id, member_id, instance_id, generation)
        return self.consumer.classic_heartbeat(group, member_id, instance_id, generation)

    def leave(self, group_id: str, members: list[tuple[str, str | None]]) -> list[int]:
        """LeaveGroup of members (id and instance id); their error codes."""
        group = self.directory.find(ConsumerGroup, group_id)
        return self.classic.leave(group_id, members) if group is None else self.consumer.leave(group, members)

    # ---- the end of a group

    def delete(self, group_id: str) -> int:
        """DeleteGroups of one group; the error code."""
        if not group_id:
            return errors.INVALID_GROUP_ID
        if not self.directory.exists(group_id):
            return errors.GROUP_ID_NOT_FOUND
        group = self.directory.groups.get(group_id)
        if group is not None and not group.empty:
            return errors.NON_EMPTY_GROUP
        offsets = self.directory.offsets.get(group_id)
        writes = [records.offset_write(group_id, where, None) for where in (offsets.places() if offsets else ())]
        error = self.directory.remove(group, writes) if group else self.directory.write(group_id, writes)
        if not error:
            self.directory.offsets.pop(group_id, None)
        return error

    def _cleanup_later(self) -> None:
        delay = self._settings.seconds("offsets.retention.check.interval.ms")
        self._cleanup = self._core.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        """Drop offsets that nobody used for offsets.retention.minutes, and empty groups left with nothing.

        Source: OffsetMetadataManager.cleanupExpiredOffsets, GroupCoordinatorShard.cleanupGroupMetadata.
        """
        now = self._core.now_ms()
        for group_id, offsets in list(self.directory.offsets.items()):
            cutoff = self._cutoff(self.directory.groups.get(group_id), now)
            if cutoff is None:
                continue
            gone = [where for where in offsets.expired(cutoff, now) if not self.commits.follows(group_id, where[0])]
            if gone and not self.commits.forget(group_id, gone):
                _log.info("group %s: %d offsets expired", group_id, len(gone))
            if not offsets and self.directory.offsets_only(group_id):
                del self.directory.offsets[group_id]
        for group in list(self.directory.groups.values()):
            # If it cannot be stored, another time.
            if group.unused and not self.directory.offsets.get(group.id) and not self.directory.remove(group, []):
                self.directory.offsets.pop(group.id, None)
        self._cleanup_later()

    def _cutoff(self, group: Group | None, now: int) -> int | None:
        """Offsets of the group that were committed until then are old; None: what its members follow is not known now.

        A group that had members and has none keeps its offsets for a while from when the last one left; others, topics
        that no member follows among them, from each commit (ClassicGroup.offsetExpirationCondition; in an empty group of
        the new protocol Kafka counts from the commits, too: it forgets what may be needed when members come back).
        """
        retention = self._settings.integer("offsets.retention.minutes") * 60_000
        if group is not None and not group.settled:
            return None
        if group is None or group.emptied is None:
            return now - retention
        return ALWAYS if self._core.loop.time() - group.emptied >= retention / 1000 else NEVER
