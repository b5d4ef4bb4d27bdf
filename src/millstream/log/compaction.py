"""Log compaction: of each key only the newest message stays, in bounded memory, while appends and reads go on.

The rules are those of Kafka's LogCleaner, Cleaner and CleanedTransactionMetadata (KIP-58, KIP-98, KIP-354, KIP-534):

- A round looks at closed segments behind `cleaned` that hold no open transaction and are older than
  min.compaction.lag.ms, and runs when their share of the log exceeds min.cleanable.dirty.ratio or one of them is
  older than max.compaction.lag.ms.
- First the dirty part is read into a map from key to newest offset. Keys of 16 bytes or more stand in it as 128-bit
  hashes; when the map is full the round ends there and the next one continues.
- Then all segments up to there are written again, several small ones into one, without records whose key has a
  newer offset. A batch keeps its offset range and sequence numbers whatever is left in it. Batches of which the map
  says that all records stay, or none, are copied or left out without looking into them again.
- A tombstone gets a delete horizon (now + delete.retention.ms, kept in the batch's base timestamp) the first time it
  is seen, and goes when a later round finds the horizon passed. So do transaction markers whose records are gone.
- Records of aborted transactions go at once; the marker stays until all are gone. An emptied batch stays, without
  records, when it is the last one of a producer that is still remembered.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Final

from millstream.log import failpoints, swap
from millstream.log.config import TopicConfig
from millstream.log.errors import CorruptMessage, StorageError
from millstream.log.files import File, write_all
from millstream.log.head import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    Head,
)
from millstream.log.index import Aborted, Index
from millstream.log.producers import Producer
from millstream.log.scan import MAX_SIZE, whole
from millstream.log.segment import Segment
from millstream.log.state import State
from millstream.protocol.records import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Buffer,
    Entry,
    Header,
    RecordsError,
    encode,
    entries,
    marker,
    note_keys,
    records,
    wrap,
)
from millstream.protocol.walk import fingerprint

BYTES_PER_KEY: Final = 200
"""Memory that a key takes in the map: with log.cleaner.dedupe.buffer.size it bounds the keys of one round."""
WRITE_BUFFER: Final = 1024 * 1024
MAX_MARKED: Final = 16 * 1024 * 1024
"""Offsets that are marked as the newest of their key, a byte each; behind them keys are looked up a second time."""
_NEWEST: Final = 1
_TOMBSTONE: Final = 2  # newest, too

_log: Final = logging.getLogger("millstream.log")


class Interrupted(Exception):
    """The partition is being closed: the round is given up, nothing has changed."""


class Newest:
    """Newest offset of each key from the offset `start` on, up to `capacity` keys; `end`: where counting has got to."""

    def __init__(self, capacity: int, start: int) -> None:
        self.capacity = capacity
        self.start = start
        self.end = start
        self._offsets: dict[bytes, int] = {}  # twice the offset, and 1 for a tombstone
        self._marks: bytearray | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def room(self, count: int) -> bool:
        """Whether a batch of `count` records surely fits. The first batch always does."""
        return not self._offsets or len(self._offsets) + count <= self.capacity

    def count(self, batch: Buffer) -> None:
        """Count in the records of a batch."""
        note_keys(batch, self.start, self._offsets)

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a record with the same key is newer than the one at `offset`."""
        return offset < self._offsets.get(fingerprint(key), -2) >> 1

    def marks(self, base: int, last: int) -> bytearray | None:
        """For each offset of a counted batch whether it is the newest of its key, after all have been counted.

        0: no; _NEWEST, _TOMBSTONE: yes. None where that is not known, so that keys have to be looked up.
        """
        if self._marks is None:
            self._marks = self._mark()
        begin, end = base - self.start, last + 1 - self.start
        return self._marks[begin:end] if begin >= 0 and end <= len(self._marks) else None

    def _mark(self) -> bytearray:
        # A loop on purpose: sorting the offsets would be one long call, and keep the interpreter from the event loop.
        marks = bytearray(min(self.end - self.start, MAX_MARKED))
        for value in self._offsets.values():
            place = (value >> 1) - self.start
            if place < len(marks):
                marks[place] = _TOMBSTONE if value & 1 else _NEWEST
        return marks


class Transactions:
    """Which transactions a round passes were aborted, and whether records of theirs were met before their marker."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, tuple[Aborted, bool]] = {}
        self._committed: set[int] = set()
        self.kept: list[Aborted] = []

    def _advance(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted[entry.producer_id] = entry, False

    def data(self, head: Head) -> bool:
        """Whether the records of this data batch were aborted."""
        last = head[BASE_OFFSET] + head[LAST_DELTA]
        self._advance(last)
        if not head[ATTRIBUTES] & TRANSACTIONAL:
            return False
        found = self._aborted.get(head[PRODUCER_ID])
        if found is None:
            self._committed.add(head[PRODUCER_ID])
            return False
        self._aborted[head[PRODUCER_ID]] = found[0], True
        return True

    def control(self, head: Head, batch: memoryview) -> bool:
        """Whether this marker is needed no longer: no record of its transaction was met before it."""
        self._advance(head[BASE_OFFSET] + head[LAST_DELTA])
        said = marker(batch) if head[RECORD_COUNT] else None
        if head[RECORD_COUNT] == 0:
            return True
        if said is None:
            return False
        if said.commit:
            if head[PRODUCER_ID] in self._committed:
                self._committed.discard(head[PRODUCER_ID])
                return False
            return True
        found = self._aborted.pop(head[PRODUCER_ID], None)
        if found is None or not found[1]:
            return True
        self.kept.append(found[0])
        return False


def compact(partition: State, now: int, flush: Callable[[], None]) -> int | None:
    """One round for this partition when one is due: the offset before which it is compacted now. Runs on a worker thread.

    `flush` syncs the partition: a power cut must not find the older record of a key removed and the newer one not on disk.
    A damaged batch ends compaction of the partition for this run (`uncleanable` says why); nothing is lost by it.
    """
    if partition.uncleanable is not None:
        return None
    config = partition.topic.config
    # Not those that an append has closed this moment: their index is still to be written by the first who comes.
    closed = list(takewhile(lambda segment: segment.index_saved, partition.segments[:-1]))
    dirty_start = max(partition.cleaned_offset, closed[0].base if closed else 0)
    bound = cleanable_until(closed, partition.last_stable_offset, config.min_compaction_lag_ms, now)
    if not due(closed, dirty_start, bound, config, now):
        return None
    if partition.flushed_offset < bound:
        flush()
    try:
        return _round(partition, closed, dirty_start, bound, config, now)
    except Interrupted:
        return None
    except (CorruptMessage, RecordsError) as error:
        partition.uncleanable = str(error)
        _log.error("%s is not compacted any more: %s", partition.name, error)
        return None
    except OSError as error:
        raise StorageError(f"{partition.name}: compaction failed, nothing is lost by it: {error}") from error


def cleanable_until(closed: list[Segment], stable: int, min_lag_ms: int, now: int) -> int:
    """Offset from which on nothing may be compacted yet: an open transaction, the active segment, or too young."""
    bound = 0
    for segment in closed:
        if segment.end_offset > stable or (min_lag_ms > 0 and segment.max_timestamp > now - min_lag_ms):
            break
        bound = segment.end_offset
    return bound


def due(closed: list[Segment], dirty_start: int, bound: int, config: TopicConfig, now: int) -> bool:
    """Whether the dirty part up to `bound` is large or old enough for a round."""
    dirty = [s for s in closed if dirty_start < s.end_offset <= bound and s.size]
    dirty_bytes = sum(s.size for s in dirty)
    if not dirty_bytes:
        return False
    clean_bytes = sum(s.size for s in closed if s.end_offset <= dirty_start)
    if dirty_bytes / (clean_bytes + dirty_bytes) > config.min_cleanable_dirty_ratio:
        return True
    oldest = min((s.first_timestamp for s in dirty if s.first_timestamp >= 0), default=now)
    return now - oldest > config.max_compaction_lag_ms


def groups(segments: list[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together: compaction leaves few records, and small files would pile up."""
    found: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if found and size + segment.size <= segment_bytes and segment.end_offset - found[-1][0].base <= MAX_SIZE:
            found[-1].append(segment)
            size += segment.size
        else:
            found.append([segment])
            size = segment.size
    return found


def _round(partition: State, closed: list[Segment], dirty_start: int, bound: int, config: TopicConfig, now: int) -> int:
    candidates = [s for s in closed if s.end_offset <= bound]
    aborted = [entry for s in partition.segments if s.aborted for entry in partition.opened.get(s)[1].aborted]
    newest = Newest(max(1, partition.topic.dedupe_bytes // BYTES_PER_KEY), dirty_start)
    transactions = Transactions(aborted)
    for segment in candidates:
        if segment.end_offset > dirty_start and not _count(partition, segment, dirty_start, newest, transactions):
            break
    else:
        newest.end = bound
    reach = [s for s in candidates if s.base < newest.end]
    last_of = dict(partition.producers)
    transactions = Transactions(aborted)
    cleaner = Cleaner(newest, transactions, last_of, config.delete_retention_ms, now)
    for group in groups(reach, config.segment_bytes):
        _clean(partition, group, cleaner, config)
    return newest.end


def _count(partition: State, segment: Segment, start: int, newest: Newest, transactions: Transactions) -> bool:
    # Fill the map with the segment's keys; False when it is full.
    file, _ = partition.opened.get(segment)
    for _, head, batch in whole(file.fd, 0, segment.size, segment.name):
        if partition.stopping:
            raise Interrupted
        last = head[BASE_OFFSET] + head[LAST_DELTA]
        if head[ATTRIBUTES] & CONTROL:
            transactions.control(head, batch)
        elif not transactions.data(head) and last >= start:
            if not newest.room(head[RECORD_COUNT]):
                return False
            newest.count(batch)
        if last >= start:
            newest.end = last + 1
    newest.end = max(newest.end, segment.end_offset)
    return True


class Cleaner:
    """Decides batch by batch what a round keeps."""

    def __init__(
        self,
        newest: Newest,
        transactions: Transactions,
        last_of: dict[int, Producer],
        delete_retention_ms: int,
        now: int,
    ) -> None:
        self.transactions = transactions
        self._newest = newest
        self._last_of = last_of
        self._delete_retention_ms = delete_retention_ms
        self._now = now

    def clean(self, head: Head, batch: memoryview) -> memoryview | bytearray | None:
        """What stays of the batch: itself, a smaller one, or None."""
        control = bool(head[ATTRIBUTES] & CONTROL)
        discard = self.transactions.control(head, batch) if control else self.transactions.data(head)
        emptied_transaction = control and discard
        if control and discard:
            discard = bool(head[ATTRIBUTES] & DELETE_HORIZON) and head[BASE_TIMESTAMP] <= self._now
        marks = (
            None if control or discard else self._newest.marks(head[BASE_OFFSET], head[BASE_OFFSET] + head[LAST_DELTA])
        )
        if marks and head[RECORD_COUNT] and marks.count(_NEWEST) == head[RECORD_COUNT]:
            return batch
        found = entries(batch) if marks is None or any(marks) else []
        if discard:
            kept: list[Entry] = []
        elif control:
            kept = found
        else:
            kept = self._kept(head, found, marks)
        if not kept:
            return self._empty(head) if self._remembered(head, control) else None
        horizon = not head[ATTRIBUTES] & DELETE_HORIZON and (
            emptied_transaction or (not control and any(tombstone for _, _, _, tombstone, _ in kept))
        )
        if len(kept) == len(found) and not horizon:
            return batch
        header = Header._make(head)
        if not header.attributes & LOG_APPEND_TIME:
            header = header._replace(max_timestamp=max(timestamp for _, timestamp, _, _, _ in kept))
        if not horizon:
            return wrap(header, b"".join(encoded for _, _, _, _, encoded in kept), len(kept))
        # The records' timestamps are relative to the base timestamp, which becomes another.
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON, base_timestamp=self._now + self._delete_retention_ms
        )
        offsets = {entry[0] for entry in kept}
        return encode(header, [record for record in records(batch) if record.offset in offsets])

    def _kept(self, head: Head, found: list[Entry], marks: bytearray | None) -> list[Entry]:
        tombstones = not head[ATTRIBUTES] & DELETE_HORIZON or self._now < head[BASE_TIMESTAMP]
        if marks is not None:
            base = head[BASE_OFFSET]
            return [e for e in found if marks[e[0] - base] and (tombstones or not e[3])]
        end, superseded = self._newest.end, self._newest.superseded
        return [
            e
            for e in found
            if e[0] >= end or (e[2] is not None and not superseded(e[2], e[0]) and (tombstones or not e[3]))
        ]

    def _remembered(self, head: Head, control: bool) -> bool:
        if head[BASE_OFFSET] + head[LAST_DELTA] + 1 == self._newest.end:
            return True
        state = self._last_of.get(head[PRODUCER_ID]) if head[PRODUCER_ID] >= 0 else None
        if state is None:
            return False
        if state.batches:
            return head[BASE_OFFSET] + head[LAST_DELTA] == state.last_offset
        return control and head[PRODUCER_EPOCH] == state.epoch

    @staticmethod
    def _empty(head: Head) -> bytearray:
        header = Header._make(head)
        return encode(
            header._replace(attributes=header.attributes & ~CODEC_MASK & ~DELETE_HORIZON, base_timestamp=-1), []
        )


def _clean(partition: State, group: list[Segment], cleaner: Cleaner, config: TopicConfig) -> None:
    first = group[0]
    temporary = first.path.with_name(first.path.name + ".cleaned")
    new = Segment(partition.folder, first.base, first.created_ms)
    new.index = Index()
    new.gaps = True
    out = File(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    new.file = out
    try:
        changed = len(group) > 1
        cleaner.transactions.kept = []
        waiting = bytearray()
        begin = 0
        for segment in group:
            file, _ = partition.opened.get(segment)
            for _, head, batch in whole(file.fd, 0, segment.size, segment.name):
                if partition.stopping:
                    raise Interrupted
                kept = cleaner.clean(head, batch)
                if kept is not batch:
                    changed = True
                if kept is None:
                    continue
                said = HEADER.unpack_from(kept)
                new.note(
                    said[BASE_OFFSET],
                    said[BASE_OFFSET] + said[LAST_DELTA],
                    said[MAX_TIMESTAMP],
                    begin + len(waiting),
                    len(kept),
                    config.index_interval_bytes,
                    said[MAX_TIMESTAMP]
                    if said[ATTRIBUTES] & (LOG_APPEND_TIME | DELETE_HORIZON)
                    else said[BASE_TIMESTAMP],
                )
                new.index.sum_up(said[BASE_OFFSET])
                waiting += kept
                if len(waiting) >= WRITE_BUFFER:
                    write_all(out.fd, waiting, begin)
                    begin += len(waiting)
                    waiting.clear()
        if not changed:
            os.unlink(temporary)
            return
        if waiting:
            write_all(out.fd, waiting, begin)
        os.fsync(out.fd)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    new.end_offset = group[-1].end_offset
    new.index.aborted = sorted(cleaner.transactions.kept, key=lambda entry: entry.last_offset)
    new.aborted = len(new.index.aborted)
    new.rebuild = first.rebuild
    failpoints.reach(failpoints.CLEAN_WRITTEN)
    decision = swap.Decision(new.base, [s.base for s in group])
    swap.decide(partition.folder, decision)
    # Readers who come by the old segments from now on must not open the new file by their name.
    partition.pin(group)
    swap.carry_out(partition.folder, decision)
    new.save_index(new.index)
    partition.swap(group, new)
    partition.opened.release(new)
