"""Where the states of share partitions are kept: `__share_group_state`, read back at start, pruned behind new snapshots.

A write is in the operating system's hands before anything that follows from it is answered, so that it survives the broker's
death; where the partition's topic is `commit` it is also synced before that (`unsynced`).

Source: Kafka's ShareCoordinatorShard, ShareCoordinatorOffsetsManager (what is not needed any more), KIP-932.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker import failpoints
from millstream.broker.core import Core
from millstream.broker.internal_topics import InternalTopic
from millstream.broker.share import records
from millstream.broker.share.partition import Update
from millstream.broker.share.records import Stored, Where
from millstream.broker.topics import SHARE_TOPIC
from millstream.log import LogError

if TYPE_CHECKING:
    from millstream.broker.internal_topics import Write
    from millstream.log import Partition

_log = logging.getLogger(__name__)
# Where the topic holds more records than this for each share partition, the oldest snapshots are written again to let go of it.
RECORDS_PER_PARTITION = 2000


class States:
    """The stored state of every share partition."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.topic = InternalTopic(
            core.log,
            SHARE_TOPIC,
            core.settings.integer("share.coordinator.state.topic.num.partitions"),
            core.settings.integer("share.coordinator.state.topic.segment.bytes"),
            compacted=False,
        )
        self.known: dict[Where, Stored] = {}
        self._snapshots: dict[Where, int] = {}  # the offset of each one's newest snapshot
        self._per_snapshot = core.settings.integer("share.coordinator.snapshot.update.records.per.snapshot")
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Read everything back."""
        for record in self.topic.replay():
            where = records.read(record, self.known)
            if where is None or record.type != records.SNAPSHOT:
                continue
            if where in self.known:
                self._snapshots[where] = record.offset
            else:
                self._snapshots.pop(where, None)
        self._prune_later()

    def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    # ---- writing; each says whether it could be stored

    def initialize(self, where: Where, start: int, epoch: int) -> bool:
        """Begin a share partition, or begin it again elsewhere; start -1: its first fetch says where."""
        before = self.known.get(where)
        fresh = Stored(start, snapshot_epoch=before.snapshot_epoch if before else -1, state_epoch=epoch, complete=0)
        return self._snapshot(where, fresh)

    def update(self, where: Where, update: Update) -> bool:
        """Store what has changed."""
        now = self._core.now_ms()
        write, after = records.next_write(where, self.known[where], update, now, self._per_snapshot)
        end = self._write(where, write)
        if end is None:
            return False
        if after.updates == 0:
            self._snapshots[where] = end - 1
        self.known[where] = after
        failpoints.reach(failpoints.SHARE_STORED)
        return True

    def truncate(self, where: Where, end: int) -> bool:
        """Forget what is said of offsets from `end` on: a power cut has taken their records, others will have them."""
        stored = self.known[where]
        if stored.start <= end and all(run.last < end for run in stored.batches):
            return True
        _log.warning("share group %s: its records from offset %d on are lost", where.group_id, end)
        batches = [run.part(run.first, end - 1) for run in stored.batches if run.first < end]
        complete = sum(run.size for run in batches if run.state.done)
        start, epoch = min(stored.start, end), stored.snapshot_epoch
        return self._snapshot(where, Stored(start, batches, epoch, stored.state_epoch, complete=complete))

    def remove(self, where: Where) -> bool:
        """Forget a share partition."""
        if where not in self.known:
            return True
        if self._write(where, records.removal(where)) is None:
            return False
        del self.known[where]
        self._snapshots.pop(where, None)
        return True

    def _snapshot(self, where: Where, stored: Stored) -> bool:
        now = self._core.now_ms()
        end = self._write(where, records.snapshot_write(where, stored, now))
        if end is None:
            return False
        stored.snapshot_epoch, stored.created, stored.updates = stored.snapshot_epoch + 1, now, 0
        self.known[where], self._snapshots[where] = stored, end - 1
        return True

    def _write(self, where: Where, write: Write) -> int | None:
        try:
            return self.topic.write(_key(where), [write], self._core.now_ms())
        except LogError as e:
            _log.error("share group %s: its state could not be stored: %s", where.group_id, e)
            return None

    def unsynced(self, wheres: Iterable[Where]) -> list[Partition]:
        """What has to be synced before changes of share partitions are answered."""
        found: dict[Partition, None] = {}
        for where in wheres:
            if self.topic.durable or where.topic_id in self._commit_topics():
                found[self.topic.partition(_key(where))] = None
        return [partition for partition in found if partition.flushed_offset < partition.end_offset]

    def _commit_topics(self) -> set[bytes]:
        if not self._core.log.has_commit:
            return set()
        return {t.id.bytes for t in self._core.log.topics.values() if t.config.durability == "commit"}

    # ---- letting go of what snapshots have replaced

    def _prune_later(self) -> None:
        delay = self._core.settings.seconds("share.coordinator.state.topic.prune.interval.ms")
        self._timer = self._core.loop.call_later(delay, self._prune)

    def _prune(self) -> None:
        self._prune_later()
        bounds = self.prune()
        if bounds:
            self._core.loop.run_in_executor(None, _delete, bounds)

    def prune(self) -> list[tuple[Partition, int]]:
        """The partitions of the topic with the offsets before which nothing is needed; old snapshots are written again first."""
        topic = self._core.log.topics.get(SHARE_TOPIC)
        found = []
        for partition in topic.partitions if topic is not None else ():
            here = [where for where in self._snapshots if self.topic.partition(_key(where)) is partition]
            held = partition.end_offset - partition.start_offset
            if held > (len(here) + 1) * RECORDS_PER_PARTITION:
                middle = partition.start_offset + held // 2
                for where in here:
                    if self._snapshots[where] < middle and not self._snapshot(where, self.known[where]):
                        break
            bound = min((self._snapshots[where] for where in here), default=partition.end_offset)
            if bound > partition.start_offset:
                found.append((partition, bound))
        return found


def _key(where: Where) -> str:
    """As Kafka's SharePartitionKey names a share partition to its coordinator."""
    return f"{where.group_id}:{topic_id_text(where.topic_id)}:{where.partition}"


def topic_id_text(topic_id: bytes) -> str:
    """A topic's id as Kafka writes it (Uuid.toString)."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _delete(bounds: list[tuple[Partition, int]]) -> None:
    """On a thread: what replaces the deleted records is on disk before they go."""
    for partition, bound in bounds:
        try:
            partition.flush()
            partition.delete_before(bound)
        except LogError as e:
            _log.error("%s could not be pruned: %s", partition.name, e)
