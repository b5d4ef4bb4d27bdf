"""The share partitions in use: what members fetch and acknowledge, stored before it is answered; locks that end; who waits.

A share partition is opened by its first fetch, from what is stored of it. Its records are looked at by the headers of their
batches alone.

Source: Kafka's SharePartitionManager, SharePartition, DelayedShareFetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.core import Core
from millstream.broker.groups.directory import Directory
from millstream.broker.groups.share import ShareGroup
from millstream.broker.refused import Refused
from millstream.broker.share.found import Found, found, trimmed
from millstream.broker.share.partition import Acknowledgement, Acquired, Change, Limits, Mode, SharePartition, Update
from millstream.broker.share.records import Where
from millstream.broker.share.runs import within
from millstream.broker.share.store import States
from millstream.protocol import errors

if TYPE_CHECKING:
    from millstream.log import Partition, Slice, Topic

# A change that could not be stored (a full disk) is tried again after so long.
RETRY_SECONDS = 1.0
# Timers may fire a little early.
EARLY_SECONDS = 0.001
# Reads of one partition in one fetch, where all that was read is to be skipped.
ROUNDS = 8


class Wanted(NamedTuple):
    """What a member wants of one partition."""

    member: str
    max_bytes: int
    max_records: int
    batch_size: int
    mode: Mode


class Given(NamedTuple):
    """What it gets: pieces of files, and which of the records in them are its own."""

    slices: list[Slice]
    acquired: list[Acquired]


class Live:
    """A share partition in use, and those who wait for its records: called when some may be there."""

    def __init__(self, where: Where, partition: Partition, state: SharePartition) -> None:
        self.where = where
        self.partition = partition
        self.state = state
        self.waiting: dict[Callable[[], None], None] = {}
        self.timer: asyncio.TimerHandle | None = None

    def wait(self, look: Callable[[], None]) -> None:
        """Have `look` called whenever records may be there."""
        self.waiting[look] = None
        self.partition.listeners.add(self._appended)

    def leave(self, look: Callable[[], None]) -> None:
        """Do not wait any more."""
        self.waiting.pop(look, None)
        if not self.waiting:
            self.partition.listeners.discard(self._appended)

    def wake(self) -> None:
        """Records may be there: the one who waits longest looks first."""
        for look in list(self.waiting):
            look()

    def _appended(self, _: Partition) -> None:
        self.wake()


class SharePartitions:
    """All share partitions in use."""

    def __init__(self, core: Core, directory: Directory, states: States) -> None:
        self._core = core
        self._directory = directory
        self.states = states
        self._live: dict[str, dict[Where, Live]] = {}  # by group

    # ---- which there are

    def open(self, group_id: str, topic: Topic, index: int) -> Live:
        """The share partition, read from what is stored of it. Raises Refused, and NotHere from an archive."""
        where = Where(group_id, topic.id.bytes, index)
        live = self._live.get(group_id, {}).get(where)
        if live is None:
            group = self._directory.find(ShareGroup, group_id)
            if group is None:
                raise Refused(errors.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            stored = self.states.known.get(where)
            if stored is None or index not in group.initialized.get(topic.id.bytes, ()):
                raise Refused(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name}-{index} is not in the share group.")
            partition = topic.partitions[index]
            live = Live(where, partition, self._begun(where, partition))
            self._live.setdefault(group_id, {})[where] = live
        self._log_started(live)
        return live

    def of_group(self, group_id: str) -> list[Live]:
        """The share partitions of a group that are in use."""
        return list(self._live.get(group_id, {}).values())

    def standing(self, where: Where, begin: int) -> tuple[int, int]:
        """Start offset (-1: no fetch has said where it begins), and how many offsets behind that and `begin` are done."""
        stored = self.states.known.get(where)
        if stored is None:
            return -1, 0
        last = stored.batches[-1].last if stored.batches else -1
        there = within(stored.batches, max(stored.start, begin), last)
        return stored.start, sum(run.size for run in there if run.state.done)

    def limits(self, group_id: str) -> Limits:
        """The group's settings as they are now."""
        of_group = self._core.dynamic.of_group
        return Limits(
            of_group(group_id, "share.delivery.count.limit"),
            of_group(group_id, "share.partition.max.record.locks"),
            of_group(group_id, "share.record.lock.duration.ms") / 1000,
        )

    def close(self, where: Where) -> None:
        """The share partition is gone, or begins elsewhere: what is acquired is nobody's now."""
        live = self._live.get(where.group_id, {}).pop(where, None)
        if live is not None:
            if live.timer is not None:
                live.timer.cancel()
            live.wake()

    def end(self) -> None:
        """End the timers."""
        for group in self._live.values():
            for live in group.values():
                if live.timer is not None:
                    live.timer.cancel()

    def _begun(self, where: Where, partition: Partition) -> SharePartition:
        """From what is stored; where nothing says where it begins, share.auto.offset.reset does, and that is stored."""
        stored = self.states.known[where]
        if stored.start < 0:
            start = self._reset(where.group_id, partition)
            if not self.states.update(where, Update(start, (), 0)):
                raise Refused(errors.COORDINATOR_NOT_AVAILABLE, "The share partition could not be stored.")
            return SharePartition(start)
        return SharePartition(stored.start, stored.batches)

    def _reset(self, group_id: str, partition: Partition) -> int:
        how = self._core.dynamic.text_of_group(group_id, "share.auto.offset.reset")
        if how == "earliest":
            return partition.start_offset
        if how == "latest":
            return partition.high_watermark
        at = self._core.now_ms() - self._core.dynamic.reset_duration_ms(group_id)
        there = partition.offset_for_time(at)
        return there[0] if there is not None else partition.high_watermark

    # ---- events

    def committed_only(self, group_id: str) -> bool:
        """Whether the group leaves aborted records out."""
        return self._core.dynamic.text_of_group(group_id, "share.isolation.level") == "read_committed"

    def last_readable(self, live: Live) -> int:
        """The offset behind the last record that the group may have now."""
        committed = self.committed_only(live.where.group_id)
        return live.partition.last_stable_offset if committed else live.partition.high_watermark

    def acquire(self, live: Live, wanted: Wanted) -> Given | None:
        """Read and acquire; None when nothing is there now. Raises Refused and LogError (NotHere among them)."""
        limits, state = self.limits(live.where.group_id), live.state
        committed = self.committed_only(live.where.group_id)
        for _ in range(ROUNDS if wanted.max_records > 0 else 0):
            if not state.has_room(limits):
                return None
            offset, limit = state.next_offset, self.last_readable(live)
            if offset >= limit:
                return None
            read = live.partition.read(offset, wanted.max_bytes, committed=committed)
            most = wanted.max_records + state.end - offset  # batches: those in flight may all be others'
            try:
                given = self._acquire(live, wanted, limits, found(read, offset, limit, most), read.slices)
            except BaseException:
                _release(read.slices)
                raise
            if given.acquired:
                return given
            _release(read.slices)
            if state.next_offset == offset:
                return None
        self._core.loop.call_soon(live.wake)  # there may be more behind what was skipped
        return None

    def _acquire(self, live: Live, wanted: Wanted, limits: Limits, there: Found, slices: list[Slice]) -> Given:
        change = live.state.acquire(
            wanted.member,
            [(batch.first, batch.last) for batch in there.batches],
            wanted.max_records,
            limits,
            self._core.loop.time(),
            mode=wanted.mode,
            batch_size=wanted.batch_size or 0x7FFFFFFF,
            skipped=there.skipped,
        )
        if not self._make(live, change):
            raise Refused(errors.COORDINATOR_NOT_AVAILABLE, "The share partition could not be stored.")
        if not change.acquired:
            return Given([], [])
        first, last = change.acquired[0].first, max(each.last for each in change.acquired)
        return Given(trimmed(slices, there.batches, first, last), change.acquired)

    def acknowledge(self, live: Live, member: str, acknowledgements: Sequence[Acknowledgement]) -> None:
        """A member is done with records, or keeps them longer; stored when it returns. Raises Refused."""
        limits, now = self.limits(live.where.group_id), self._core.loop.time()
        if not self._make(live, live.state.acknowledge(member, acknowledgements, limits, now)):
            raise Refused(errors.COORDINATOR_NOT_AVAILABLE, "The acknowledgement could not be stored.")

    def release(self, group_id: str, member: str) -> None:
        """A member's session has ended: what it has acquired is there for others."""
        limits = self.limits(group_id)
        for live in self.of_group(group_id):
            # If it cannot be stored, the locks end by themselves.
            self._make(live, live.state.release(member, limits))

    def _log_started(self, live: Live) -> None:
        """Retention or DeleteRecords may have moved the partition's start."""
        if live.partition.start_offset > live.state.start:
            self._make(live, live.state.log_started(live.partition.start_offset))

    def _make(self, live: Live, change: Change) -> bool:
        """Store a change, make it, and see what follows; whether it could be stored."""
        if change.update is not None and not self.states.update(live.where, change.update):
            return False
        room = live.state.next_offset, live.state.start
        live.state.make(change)
        self._schedule(live)
        if live.waiting and (live.state.next_offset < room[0] or live.state.start > room[1]):
            live.wake()
        return True

    def _schedule(self, live: Live) -> None:
        deadline = live.state.next_deadline()
        if live.timer is not None:
            if deadline is not None and live.timer.when() <= deadline:
                return  # it looks again when it fires
            live.timer.cancel()
            live.timer = None
        if deadline is not None:
            live.timer = self._core.loop.call_at(deadline, self._tick, live)

    def _tick(self, live: Live) -> None:
        live.timer = None
        if self._live.get(live.where.group_id, {}).get(live.where) is not live:
            return
        change = live.state.tick(self.limits(live.where.group_id), self._core.loop.time() + EARLY_SECONDS)
        if not self._make(live, change):
            live.timer = self._core.loop.call_later(RETRY_SECONDS, self._tick, live)


def _release(slices: list[Slice]) -> None:
    for piece in slices:
        piece.release()
