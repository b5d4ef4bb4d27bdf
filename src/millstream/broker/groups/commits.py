"""The offsets that groups commit: who may, stored before the answer, and what becomes of them.

What is committed for a topic that is `commit` is answered, and shown to anybody, only when it is on disk
(`Offsets.upto`, `unsynced`). With it goes what was stored of the group before: a generation or member epoch that was
lost in a power cut is one under which nothing was committed for such a topic, and its members join again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker import failpoints, limits
from millstream.broker.core import Core
from millstream.broker.groups import records
from millstream.broker.groups.classic_groups import ClassicGroups
from millstream.broker.groups.directory import Directory
from millstream.broker.groups.group import Committer
from millstream.broker.groups.offsets import Committed, Offsets, Where
from millstream.broker.internal_topics import Replayed
from millstream.broker.refused import Refused
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

# Members of the new group protocol commit with this version of OffsetCommit or a later one.
EPOCHS = 9


class Commits:
    """The offsets of all groups."""

    def __init__(self, core: Core, directory: Directory, classic: ClassicGroups) -> None:
        self._core = core
        self._directory = directory
        self._classic = classic
        self._offsets = directory.offsets
        self._store = directory.store
        self._writers: dict[
            int, set[str]
        ] = {}  # producer id -> groups for which its open transaction committed offsets

    # ---- what a power cut must not undo

    def unsynced(self, group_id: str) -> list[Partition]:
        """What has to be synced before the group's offsets are answered or shown."""
        offsets = self._offsets.get(group_id)
        if offsets is None or not offsets.upto:
            return []
        partition = self._store.partition(group_id)
        return [partition] if partition.flushed_offset < offsets.upto else []

    def removed(self, group_ids: Iterable[str]) -> list[Partition]:
        """What has to be synced before a removal of groups or their offsets is answered."""
        if not self._store.durable and not self._core.log.has_commit:
            return []
        partitions = {self._store.partition(group_id): None for group_id in group_ids}
        return [partition for partition in partitions if partition.flushed_offset < partition.end_offset]

    def topics_of(self, group_id: str) -> set[str]:
        """The topics that a group follows, or has committed offsets for."""
        found: set[str] = set()
        if (offsets := self._offsets.get(group_id)) is not None:
            found.update(name for name, _ in offsets.places())
        if (group := self._directory.groups.get(group_id)) is not None:
            found.update(group.subscribed())
        return found

    def pending_topics(self, producer_id: int) -> set[str]:
        """The topics for which an open transaction has committed offsets."""
        found: set[str] = set()
        for group_id in self._writers.get(producer_id, ()):
            offsets = self._offsets.get(group_id)
            if offsets is not None:
                found.update(name for name, _ in offsets.pending.get(producer_id, ()))
        return found

    # ---- whether it is allowed

    def check_delete(self, group_id: str) -> int:
        """Whether offsets of the group may be deleted, but for topics that it `follows`; the error code."""
        if not self._directory.exists(group_id):
            return errors.GROUP_ID_NOT_FOUND
        group = self._directory.groups.get(group_id)
        return group.check_offset_delete() if group is not None else errors.NONE

    def follows(self, group_id: str, topic: str) -> bool:
        """Whether members of the group follow a topic."""
        group = self._directory.groups.get(group_id)
        return group is not None and group.follows(topic)

    def check(self, group_id: str, by: Committer) -> int:
        """Whether an OffsetCommit or TxnOffsetCommit is allowed now, as far as the group goes; the error code.

        A commit from outside (epoch -1) makes a classic group, and keeps it even if it is refused.
        Source: OffsetMetadataManager.validateOffsetCommit, validateTransactionalOffsetCommit.
        """
        group = self._directory.groups.get(group_id)
        if group is None:
            known = group_id in self._offsets  # only offsets: of a group without members that was read back at start
            if by.epoch >= 0 and not known:
                older = not by.transactional and by.version < EPOCHS
                return errors.ILLEGAL_GENERATION if older else errors.GROUP_ID_NOT_FOUND
            if not known and len(self._offsets) >= limits.MAX_GROUPS:
                return errors.GROUP_MAX_SIZE_REACHED
            try:
                group = self._classic.found(group_id)
            except Refused as e:
                return e.code
        error = group.check_commit(by, self._core.loop.time())
        self._directory.watch(group_id)
        return error

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> int:
        """Whether an OffsetFetch is allowed; the error code."""
        group = self._directory.groups.get(group_id)
        return errors.NONE if group is None else group.check_fetch(member_id, epoch)

    # ---- what is committed

    def of(self, group_id: str) -> Offsets:
        """What a group has committed."""
        return self._offsets.get(group_id) or Offsets()

    def place(self, group_id: str) -> Where:
        """The partition that holds the group's offsets; made if it is not there yet."""
        partition = self._store.partition(group_id)
        return partition.topic.name, partition.index

    def commit(self, group_id: str, commits: list[tuple[Where, Committed]]) -> int:
        """Store committed offsets; the error code."""
        error = self._directory.write(
            group_id, [records.offset_write(group_id, where, what) for where, what in commits]
        )
        if not error:
            offsets = self._offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit(where, what)
            failpoints.reach(failpoints.OFFSETS_STORED)
            self._guard(group_id, offsets, commits)
        return error

    def _guard(self, group_id: str, offsets: Offsets, commits: list[tuple[Where, Committed]]) -> None:
        if self._store.must_survive({name for (name, _), _ in commits}):
            offsets.upto = self._store.partition(group_id).end_offset

    def commit_pending(self, group_id: str, producer: tuple[int, int], commits: list[tuple[Where, Committed]]) -> int:
        """Store offsets inside a producer's transaction; the error code."""
        writes = [records.offset_write(group_id, where, what) for where, what in commits]
        error = self._directory.write(group_id, writes, producer)
        if not error:
            offsets = self._offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit_pending(producer[0], where, what)
            self._writers.setdefault(producer[0], set()).add(group_id)
            failpoints.reach(failpoints.PENDING_STORED)
            self._guard(group_id, offsets, commits)
        return error

    def transaction_ended(self, producer_id: int, commit: bool, index: int, *, durable: bool) -> None:
        """The marker of a transaction is in a partition of the offsets topic: it ends what was committed there."""
        writers = self._writers.get(producer_id, set())
        for group_id in list(writers):
            partition = self._store.partition(group_id)
            if partition.index != index:
                continue
            writers.discard(group_id)
            offsets = self._offsets.get(group_id)
            if offsets is not None:
                offsets.end(producer_id, commit)
                if durable:
                    offsets.upto = partition.end_offset
        if not writers:
            self._writers.pop(producer_id, None)

    def forget(self, group_id: str, places: list[Where]) -> int:
        """Remove offsets, those of open transactions too (OffsetMetadataManager.deleteOffsets); the error code."""
        offsets = self._offsets.get(group_id)
        if offsets is None:
            return errors.NONE
        there = offsets.places()
        known = [where for where in places if where in there]
        error = self._directory.write(group_id, [records.offset_write(group_id, where, None) for where in known])
        if not error:
            for where in known:
                offsets.forget(where)
        return error

    def topic_deleted(self, name: str) -> None:
        """Groups forget what they committed for a topic that is gone."""
        for group_id, offsets in list(self._offsets.items()):
            gone = [where for where in offsets.places() if where[0] == name]
            if gone:
                self.forget(group_id, gone)

    # ---- from start to end

    def read(self, record: Replayed) -> None:
        """A commit, or the end of a transaction, read back at start."""
        if record.ended is not None:
            self.transaction_ended(record.producer_id, record.ended, record.partition, durable=False)
            return
        group_id, where, what = records.read_offset(record)
        offsets = self._offsets.setdefault(group_id, Offsets())
        if what is None:
            offsets.forget(where)
        elif record.producer_id >= 0:
            offsets.commit_pending(record.producer_id, where, what)
            self._writers.setdefault(record.producer_id, set()).add(group_id)
        else:
            offsets.commit(where, what)

    def loaded(self) -> None:
        """Everything is read back: what a killed broker wrote need not be synced yet."""
        for group_id in [group_id for group_id, offsets in self._offsets.items() if not offsets]:
            del self._offsets[group_id]
        if self._store.durable or self._core.log.has_commit:
            for group_id, left in self._offsets.items():
                left.upto = self._store.partition(group_id).end_offset
