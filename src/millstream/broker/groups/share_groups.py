"""Carries out share groups: stores what has changed before it is answered, begins the states of their partitions, ends them.

A partition's state is begun in `__share_group_state` before the group says so in `__consumer_offsets`, and ended after the group
has said that it is gone; what a crash leaves between the two is put right at start.

Source: Kafka's GroupMetadataManager (shareGroupHeartbeat, and what it does about offsets of share groups), KIP-932.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker import failpoints, limits
from millstream.broker.core import Core
from millstream.broker.groups import share_records
from millstream.broker.groups.consumer_members import JOIN_EPOCH, Changes, Outcome
from millstream.broker.groups.directory import Directory
from millstream.broker.groups.share import ShareGroup, ShareHeartbeat
from millstream.broker.internal_topics import Replayed, Write
from millstream.broker.refused import Refused
from millstream.broker.share.coordinator import SharePartitions
from millstream.broker.share.records import Where
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

_log = logging.getLogger(__name__)


class ShareGroups:
    """All share groups."""

    records = share_records.TYPES

    def __init__(self, core: Core, directory: Directory, partitions: SharePartitions) -> None:
        self._core = core
        self._directory = directory
        self._partitions = partitions
        self._states = partitions.states

    # ---- requests

    def find(self, group_id: str) -> ShareGroup | None:
        """The share group of an id."""
        return self._directory.find(ShareGroup, group_id)

    def heartbeat(self, group_id: str, beat: ShareHeartbeat) -> Outcome:
        """ShareGroupHeartbeat; the first one makes a group."""
        try:
            group = self.find(group_id) or self._made(group_id, beat.epoch == JOIN_EPOCH)
        except Refused as e:
            return Outcome(e.code, str(e))
        outcome = group.heartbeat(beat, self._core.loop.time())
        wanted = {name: there for name in group.subscribed() if (there := self._directory.topics().get(name))}
        if not self._begin(group, wanted) or not self._store(group):
            return Outcome(errors.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} could not be stored.")
        return outcome

    def alter(self, group_id: str, starts: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """AlterShareGroupOffsets: have partitions (topic and index, all of them there) begin elsewhere; error codes by partition.

        Makes the group if it is not there. Raises Refused.
        """
        group = self.find(group_id) or self._made(group_id, True)
        if not group.empty:
            raise Refused(errors.NON_EMPTY_GROUP, f"Group {group_id} is not empty.")
        existing = self._directory.topics()
        results = {}
        for (name, index), start in starts.items():
            where = Where(group_id, existing[name][0], index)
            done = self._states.initialize(where, start, group.epoch)
            results[name, index] = errors.NONE if done else errors.COORDINATOR_NOT_AVAILABLE
            if done:
                self._partitions.close(where)
                group.initialized.setdefault(where.topic_id, set()).add(index)
        group.changes.group = True
        if not self._say_started(group) or not self._store(group):
            raise Refused(errors.COORDINATOR_NOT_AVAILABLE, f"Group {group_id} could not be stored.")
        return results

    def forget(self, group: ShareGroup, topic_id: bytes) -> int:
        """DeleteShareGroupOffsets of one topic: as if the group had never seen it; the error code."""
        before = group.initialized.pop(topic_id, set())
        if not self._say_started(group):
            group.initialized[topic_id] = before
            return errors.COORDINATOR_NOT_AVAILABLE
        return errors.NONE if self._end_states(group.id, topic_id, before) else errors.COORDINATOR_NOT_AVAILABLE

    def topic_deleted(self, topic_id: bytes) -> None:
        """Groups forget what they have of a topic that is gone."""
        for group in self.all():
            if topic_id in group.initialized:
                self.forget(group, topic_id)

    def reconfigured(self, group_id: str) -> None:
        """A group's own settings have changed: they hold from its members' next heartbeats on."""
        group = self.find(group_id)
        if group is not None:
            group.session_seconds = self._session_seconds(group_id)

    def all(self) -> list[ShareGroup]:
        """Every share group."""
        return [group for group in self._directory.groups.values() if isinstance(group, ShareGroup)]

    def unacknowledged(self, group_id: str, wheres: Iterable[Where]) -> list[Partition]:
        """What has to be synced before acknowledgements are answered: their states, and that the group has those."""
        states = self._states.unsynced(wheres)
        group = self.find(group_id)
        if states and group is not None:
            said = self._directory.store.partition(group_id)
            return [*states, said] if said.flushed_offset < group.upto else states
        return states

    def unsynced(self, group_id: str) -> list[Partition]:
        """What has to be synced before administrators are answered; while there are `commit` topics."""
        store = self._directory.store
        if not store.durable and not self._core.log.has_commit:
            return []
        partitions = [store.partition(group_id), *self._states.topic.unsynced()]
        return [partition for partition in partitions if partition.flushed_offset < partition.end_offset]

    # ---- what follows

    def _made(self, group_id: str, joining: bool) -> ShareGroup:
        if self._directory.exists(group_id):
            raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if not joining:
            raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if self._directory.full():
            raise Refused(errors.GROUP_MAX_SIZE_REACHED, f"There are {limits.MAX_GROUPS} groups already.")
        group = self._directory.groups[group_id] = self._make(group_id)
        return group

    def _make(self, group_id: str) -> ShareGroup:
        return ShareGroup(
            group_id,
            self._directory.topics,
            session_seconds=self._session_seconds(group_id),
            max_size=self._core.settings.integer("group.share.max.size"),
        )

    def _session_seconds(self, group_id: str) -> float:
        return self._core.dynamic.of_group(group_id, "share.session.timeout.ms") / 1000

    def _begin(self, group: ShareGroup, topics: dict[str, tuple[bytes, int]]) -> bool:
        """Begin the states of partitions that the group has not seen yet; whether that could be stored."""
        new = False
        for topic_id, count in topics.values():
            begun = group.initialized.setdefault(topic_id, set())
            for index in range(count) if len(begun) < count else ():
                if index in begun:
                    continue
                if not self._states.initialize(Where(group.id, topic_id, index), -1, group.epoch):
                    return False
                begun.add(index)
                new = True
        if not new:
            return True
        failpoints.reach(failpoints.SHARE_STARTED)
        return self._say_started(group)

    def _say_started(self, group: ShareGroup) -> bool:
        if self._directory.write(group.id, [share_records.started(group, self._directory.topic_name)]):
            return False
        group.upto = self._directory.store.partition(group.id).end_offset
        return True

    def _end_states(self, group_id: str, topic_id: bytes, indexes: Iterable[int]) -> bool:
        done = True
        for index in indexes:
            where = Where(group_id, topic_id, index)
            self._partitions.close(where)
            done &= self._states.remove(where)
        return done

    def _store(self, group: ShareGroup) -> bool:
        """Store what has changed, and watch the clocks; what could not be stored is tried again with the next change."""
        self._directory.schedule(group.id)
        if not group.changes:
            return True
        if self._directory.write(group.id, share_records.writes(group)):
            return False
        group.changes = Changes()
        return True

    # ---- what all kinds do

    def read(self, record: Replayed, written: float) -> None:
        """A record of a group, read back at start."""
        group_id = share_records.group_of(record)
        group = self.find(group_id)
        if record.type == share_records.GROUP and record.value is None:
            if group is not None:
                del self._directory.groups[group_id]
            return
        if group is None:
            if record.value is None:
                return
            group = self._directory.groups[group_id] = self._make(group_id)
        share_records.read(record, group)
        if record.type == share_records.GROUP:  # the last one of an empty group: its last member left
            group.since = written

    def loaded(self) -> None:
        """Everything is read back: states of groups, topics, partitions and records that are not there are ended."""
        self._states.load()
        groups = {group.id: group for group in self.all()}
        for where in list(self._states.known):
            group = groups.get(where.group_id)
            if group is None or where.partition not in group.initialized.get(where.topic_id, ()):
                self._states.remove(where)
                continue
            group.upto = self._directory.store.partition(group.id).end_offset
            name = self._directory.topic_name(where.topic_id)
            if name is None:
                self.forget(group, where.topic_id)
            elif where.partition < len(partitions := self._core.log.topics[name].partitions):
                self._states.truncate(where, partitions[where.partition].end_offset)

    def removal(self, group: ShareGroup) -> list[Write]:
        """The records that say that an empty group is gone."""
        return share_records.removal(group)

    def removed(self, group: ShareGroup) -> None:
        """The group is gone: so are the states of its partitions."""
        failpoints.reach(failpoints.SHARE_ENDED)
        for topic_id, indexes in group.initialized.items():
            self._end_states(group.id, topic_id, indexes)

    def tick(self, group: ShareGroup, now: float) -> None:
        """Sessions of members may have ended."""
        self._directory.log_gone(group, group.tick(now))
        self._store(group)
