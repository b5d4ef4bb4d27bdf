"""The offsets that groups commit: who may, stored before the answer, and what becomes of them.

What is committed for a topic that is ``commit`` is answered, and shown to anybody, only when it is on disk
(``Offsets.upto``, ``unsynced``). With it goes what was stored of the group before: a generation or member epoch that was
lost in a power cut is one under which nothing was committed for such a topic, and its members join again.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker import failpoints, limits
from millstream.broker.groups import records
from millstream.broker.groups.classic import ClassicGroup
from millstream.broker.groups.offsets import Committed, Offsets, Where
from millstream.broker.groups.running import Running
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition

# Members of the new group protocol commit with this version of OffsetCommit or a later one.
EPOCHS = 9


class Commits(Running):
    """The offsets of all groups."""

    # ---- what a power cut must not undo

    def unsynced(self, group_id: str) -> "list[Partition]":
        """What has to be synced before the group's offsets are answered or shown."""
        offsets = self.offsets.get(group_id)
        if offsets is None or not offsets.upto:
            return []
        partition = self.store.partition(group_id)
        return [partition] if partition.flushed_offset < offsets.upto else []

    def removed(self, group_ids: Iterable[str]) -> "list[Partition]":
        """What has to be synced before a removal of groups or their offsets is answered."""
        if not self.store.durable and not self._core.log.has_commit:
            return []
        partitions = {self.store.partition(group_id): None for group_id in group_ids}
        return [partition for partition in partitions if partition.flushed_offset < partition.end_offset]

    def topics_of(self, group_id: str) -> set[str]:
        """The topics that a group follows, or has committed offsets for."""
        found: set[str] = set()
        if (offsets := self.offsets.get(group_id)) is not None:
            found.update(name for name, _ in offsets.places())
        if (group := self.groups.get(group_id)) is not None:
            found.update(group.topics or ())
        if (consumer := self.consumers.get(group_id)) is not None:
            found |= consumer.subscribed()
        return found

    def pending_topics(self, producer_id: int) -> set[str]:
        """The topics for which an open transaction has committed offsets."""
        found: set[str] = set()
        for group_id in self.writers.get(producer_id, ()):
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                found.update(name for name, _ in offsets.pending.get(producer_id, ()))
        return found

    # ---- whether it is allowed

    def check_offset_delete(self, group_id: str) -> int:
        """Whether offsets of the group may be deleted, but for topics that it ``follows``; the error code."""
        if not self.exists(group_id):
            return errors.GROUP_ID_NOT_FOUND
        group = self.groups.get(group_id)
        return group.check_offset_delete() if group is not None else errors.NONE

    def follows(self, group_id: str, topic: str) -> bool:
        """Whether members of the group follow a topic."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            return topic in consumer.subscribed()
        group = self.groups.get(group_id)
        return group is not None and group.follows(topic)

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        places: list[tuple[bytes, int]],
        version: int,
    ) -> int:
        """Whether an OffsetCommit for these partitions (topic id and index) is allowed now; the error code."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            if member_id in consumer.members and version < EPOCHS:
                return errors.UNSUPPORTED_VERSION
            return consumer.check_commit(member_id, generation, places)
        group, error = self._committed_by(group_id, generation)
        if group is None:
            return errors.ILLEGAL_GENERATION if error == errors.GROUP_ID_NOT_FOUND and version < EPOCHS else error
        error = group.check_commit(member_id, instance_id, generation, self._core.loop.time())
        self.heard(group)
        return error

    def check_transactional_commit(
        self, group_id: str, member_id: str, instance_id: str | None, epoch: int, places: list[tuple[bytes, int]]
    ) -> int:
        """Whether a TxnOffsetCommit for these partitions is allowed now, as far as the group goes; the error code."""
        consumer = self.consumers.get(group_id)
        if consumer is not None:
            nobody = epoch == -1 and not member_id and instance_id is None
            return errors.NONE if nobody else consumer.check_commit(member_id, epoch, places)
        group, error = self._committed_by(group_id, epoch)
        return error if group is None else group.check_transactional_commit(member_id, instance_id, epoch)

    def _committed_by(self, group_id: str, generation: int) -> tuple[ClassicGroup | None, int]:
        """The classic group that a commit is for; a commit from outside (-1) makes one, and keeps it even if it is refused.

        Source: OffsetMetadataManager.validateOffsetCommit, validateTransactionalOffsetCommit.
        """
        group = self.groups.get(group_id)
        if group is not None:
            return group, errors.NONE
        known = group_id in self.offsets  # only offsets: of a group without members that was read back at start
        if generation >= 0 and not known:
            return None, errors.GROUP_ID_NOT_FOUND
        if self._full() or (not known and len(self.offsets) >= limits.MAX_GROUPS):
            return None, errors.GROUP_MAX_SIZE_REACHED
        return self.classic(group_id, create=True), errors.COORDINATOR_NOT_AVAILABLE

    def check_offset_fetch(self, group_id: str, member_id: str | None, epoch: int) -> int:
        """Whether an OffsetFetch is allowed; the error code."""
        consumer = self.consumers.get(group_id)
        return errors.NONE if consumer is None else consumer.check_fetch(member_id, epoch)

    # ---- what is committed

    def place(self, group_id: str) -> Where:
        """The partition that holds the group's offsets; made if it is not there yet."""
        partition = self.store.partition(group_id)
        return partition.topic.name, partition.index

    def commit(self, group_id: str, commits: list[tuple[Where, Committed]]) -> int:
        """Store committed offsets; the error code."""
        error = self._write(group_id, [records.offset_write(group_id, where, what) for where, what in commits])
        if not error:
            offsets = self.offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit(where, what)
            failpoints.reach(failpoints.OFFSETS_STORED)
            self._guard(group_id, offsets, commits)
        return error

    def _guard(self, group_id: str, offsets: Offsets, commits: list[tuple[Where, Committed]]) -> None:
        if self.store.must_survive({name for (name, _), _ in commits}):
            offsets.upto = self.store.partition(group_id).end_offset

    def commit_pending(self, group_id: str, producer: tuple[int, int], commits: list[tuple[Where, Committed]]) -> int:
        """Store offsets inside a producer's transaction; the error code."""
        writes = [records.offset_write(group_id, where, what) for where, what in commits]
        error = self._write(group_id, writes, producer)
        if not error:
            offsets = self.offsets.setdefault(group_id, Offsets())
            for where, what in commits:
                offsets.commit_pending(producer[0], where, what)
            self.writers.setdefault(producer[0], set()).add(group_id)
            failpoints.reach(failpoints.PENDING_STORED)
            self._guard(group_id, offsets, commits)
        return error

    def transaction_ended(self, producer_id: int, commit: bool, index: int, *, durable: bool) -> None:
        """The marker of a transaction is in a partition of the offsets topic: it ends what was committed there."""
        writers = self.writers.get(producer_id, set())
        for group_id in list(writers):
            partition = self.store.partition(group_id)
            if partition.index != index:
                continue
            writers.discard(group_id)
            offsets = self.offsets.get(group_id)
            if offsets is not None:
                offsets.end(producer_id, commit)
                if durable:
                    offsets.upto = partition.end_offset
        if not writers:
            self.writers.pop(producer_id, None)

    def forget_offsets(self, group_id: str, places: list[Where]) -> int:
        """Remove offsets, those of open transactions too (OffsetMetadataManager.deleteOffsets); the error code."""
        offsets = self.offsets.get(group_id)
        if offsets is None:
            return errors.NONE
        there = offsets.places()
        known = [where for where in places if where in there]
        error = self._write(group_id, [records.offset_write(group_id, where, None) for where in known])
        if not error:
            for where in known:
                offsets.forget(where)
        return error

    def topic_deleted(self, name: str) -> None:
        """Groups forget what they committed for a topic that is gone."""
        for group_id, offsets in list(self.offsets.items()):
            gone = [where for where in offsets.places() if where[0] == name]
            if gone:
                self.forget_offsets(group_id, gone)
