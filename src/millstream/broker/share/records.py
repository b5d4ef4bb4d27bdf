"""What share partitions store in `__share_group_state`, with Kafka's schemas: snapshots, and updates to them.

A partition's first record is a snapshot of everything; updates follow, each with the states that have changed, until there are
UPDATES_PER_SNAPSHOT of them: then comes the next snapshot, and what was before it is not needed any more. Updates have all the
same key, so the topic must not be compacted (Kafka: `cleanup.policy=delete`; what a snapshot replaces is deleted by its
coordinator).

Source: Kafka's ShareCoordinatorRecordHelpers, ShareCoordinatorShard, ShareGroupOffset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.broker.internal_topics import Replayed, Write
from millstream.broker.share.partition import SharePartition, Update
from millstream.broker.share.runs import Run, State, overlaid, within
from millstream.protocol.messages.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareSnapshotValueStateBatch,
    ShareUpdateKey,
    ShareUpdateValue,
    ShareUpdateValueStateBatch,
)

SNAPSHOT, UPDATE = ShareSnapshotKey.API_KEY, ShareUpdateKey.API_KEY
# share.coordinator.snapshot.update.records.per.snapshot
UPDATES_PER_SNAPSHOT = 500


class Where(NamedTuple):
    """A share partition: the group, and the partition by its topic's id."""

    group_id: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class Stored:
    """What is stored of one share partition: enough to write the next record, and to read everything back."""

    start: int
    batches: list[Run] = field(default_factory=list)
    snapshot_epoch: int = 0
    state_epoch: int = 0
    created: int = 0  # epoch milliseconds, of the present snapshot
    updates: int = 0  # since then
    complete: int = -1

    def partition(self) -> SharePartition:
        """The share partition as it is after a restart."""
        return SharePartition(self.start, self.batches)

    def apply(self, update: Update) -> None:
        """Take over an update that is stored."""
        if update.start >= 0:
            self.start = update.start
        self.complete = update.complete
        for batch in update.batches:
            self.batches = overlaid(self.batches, batch)
        if self.batches:
            self.batches = list(within(self.batches, self.start, self.batches[-1].last))


def snapshot_write(where: Where, stored: Stored, now: int) -> Write:
    """Everything about a share partition, as the next snapshot; `stored` is that of before, with what has changed since."""
    batches = [ShareSnapshotValueStateBatch(b.first, b.last, b.state, b.deliveries) for b in stored.batches]
    value = ShareSnapshotValue(
        snapshot_epoch=stored.snapshot_epoch + 1,
        state_epoch=stored.state_epoch,
        leader_epoch=0,
        start_offset=stored.start,
        delivery_complete_count=stored.complete,
        create_timestamp=now,
        write_timestamp=now,
        state_batches=batches,
    )
    return ShareSnapshotKey(*where), value, 0


def update_write(where: Where, stored: Stored, update: Update) -> Write:
    """What has changed since the snapshot or the update before."""
    batches = [ShareUpdateValueStateBatch(b.first, b.last, b.state, b.deliveries) for b in update.batches]
    value = ShareUpdateValue(
        snapshot_epoch=stored.snapshot_epoch,
        leader_epoch=0,
        start_offset=update.start,
        delivery_complete_count=update.complete,
        state_batches=batches,
    )
    return ShareUpdateKey(*where), value, 0


def removal(where: Where) -> Write:
    """The share partition is gone: its group or topic is."""
    return ShareSnapshotKey(*where), None, 0


def next_write(
    where: Where, stored: Stored, update: Update, now: int, per_snapshot: int = UPDATES_PER_SNAPSHOT
) -> tuple[Write, Stored]:
    """The record for an update, and what is stored once it is written."""
    after = Stored(
        stored.start,
        stored.batches,
        stored.snapshot_epoch,
        stored.state_epoch,
        stored.created,
        stored.updates + 1,
        stored.complete,
    )
    after.apply(update)
    if after.updates < per_snapshot:
        return update_write(where, stored, update), after
    write = snapshot_write(where, after, now)
    after.snapshot_epoch, after.created, after.updates = stored.snapshot_epoch + 1, now, 0
    return write, after


def read(record: Replayed, known: dict[Where, Stored]) -> Where | None:
    """Apply a stored record; whose it is. An update without its snapshot says nothing, and is left out."""
    if record.type == SNAPSHOT:
        key = ShareSnapshotKey.decode(record.key, 0)
        where = Where(key.group_id, key.topic_id, key.partition)
        if record.value is None:
            known.pop(where, None)
            return where
        value = ShareSnapshotValue.decode(record.value, record.version)
        batches = [_run(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in value.state_batches]
        known[where] = Stored(
            value.start_offset,
            [],
            value.snapshot_epoch,
            value.state_epoch,
            value.create_timestamp,
            complete=value.delivery_complete_count,
        )
        for batch in batches:
            known[where].batches = overlaid(known[where].batches, batch)
        return where
    if record.type == UPDATE and record.value is not None:
        update_key = ShareUpdateKey.decode(record.key, 0)
        stored = known.get(Where(update_key.group_id, update_key.topic_id, update_key.partition))
        update = ShareUpdateValue.decode(record.value, record.version)
        if stored is None or stored.snapshot_epoch != update.snapshot_epoch:
            return None
        runs = (_run(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in update.state_batches)
        stored.apply(Update(update.start_offset, tuple(runs), update.delivery_complete_count))
        stored.updates += 1
    return None


def _run(first: int, last: int, state: int, deliveries: int) -> Run:
    return Run(first, last, State(state), deliveries)
