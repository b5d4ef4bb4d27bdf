"""One partition: a sequence of segments that is appended to at the end and read anywhere.

Threads. Appends and reads come from one thread (the broker's event loop). `flush`, `tidy`, `retain`, `compact` and
`save` block and come from worker threads. `_lock` guards what both change and is held for memory operations only
(and for the one write of an append); `_work` lets one worker at a time change the set of segments; `_flushing` lets
one sync at a time. Order: `_work`, `_flushing`, `_saving`, `_lock`. Readers take no lock: the table of segments is
replaced, never changed, and a File stays open while somebody holds it.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.log import checkpoint as checkpoints
from millstream.log import compaction, failpoints, reading, retention
from millstream.log import index as indexes
from millstream.log import producers as states
from millstream.log.config import TopicConfig
from millstream.log.errors import (
    BatchesTooLarge,
    LogError,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageError,
    UnknownTopic,
)
from millstream.log.files import File, replace, sync_folder, write_all
from millstream.log.index import Index
from millstream.log.producers import Producer, Sent
from millstream.log.reading import Read, Slice
from millstream.log.recovery import read_snapshot, recover, remove_segment_files, replay
from millstream.log.scan import Head
from millstream.log.segment import MAX_SIZE, OpenSegments, Segment, file_name
from millstream.log.validation import examine, split
from millstream.protocol.records import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    TRANSACTIONAL,
    RecordsError,
    marker,
    seal,
)

if TYPE_CHECKING:
    from millstream.log.topic import Topic

CHECKPOINT_BYTES: Final = 128 * 1024 * 1024
"""After this much has been appended the log is synced and a checkpoint is written: bounds the scan after a crash."""
MAX_UNTIDY: Final = 8
"""Closed segments whose index waits to be written by a worker; beyond it the append that rolls writes one itself."""
MAX_SLICES: Final = 16
"""Slices of one read: bounds the work of a read over many small segments."""
MAX_CURSORS: Final = 64
"""Readers at the end whose position is remembered."""
LEADER_EPOCH: Final = 0
"""There is one leader for ever: this machine."""

_EPOCH_OFFSET: Final = 12
_pack_header: Final = HEADER.pack_into
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")


class Appended(NamedTuple):
    """Where an append stands; `log_append_time` is -1 when the producer's timestamps were kept.

    A `duplicate` was written before: its offsets are those of that time, and nothing was written now.
    """

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class Partition:
    """A partition of a topic; made by the topic, which opens and recovers its folder."""

    def __init__(self, topic: Topic, index: int, folder: Path, opened: OpenSegments, *, clean: bool, now: int) -> None:
        found = recover(folder, clean=clean, now=now)
        self.topic = topic
        self.index = index
        self.folder = folder
        self.recovered = found.notes
        self.listeners: set[Callable[[Partition], None]] = set()
        self.failed: str | None = None
        self._opened = opened
        self._lock = threading.Lock()
        self._work = threading.Lock()
        self._flushing = threading.Lock()
        self._saving = threading.Lock()
        self._producers = found.producers
        self._snapshots = found.snapshots
        self._table: tuple[list[int], list[Segment]] = ([s.base for s in found.segments], found.segments)
        self._active = found.segments[-1]
        self._end = self._active.end_offset
        self._start = found.checkpoint.start
        self._flushed = found.checkpoint.flushed
        self._cleaned = found.checkpoint.cleaned
        self._saved = found.checkpoint
        self._saved_bytes = 0
        self._appended_bytes = 0
        self._cursors: dict[int, tuple[Segment, int]] = {}
        self._waiting_snapshots: dict[int, dict[int, Producer]] = {}
        self._folder_dirty = True
        self._last_flush_ms = now
        self._max_timestamp = -1
        self._closed = False
        self._checkpoint_next = False
        self.stopping = False
        self.uncleanable: str | None = None
        self._unsynced = [s for s in found.segments[:-1] if s.end_offset > self._flushed]
        for segment in found.segments:
            segment.rebuild = self._rebuild
            self._max_timestamp = max(self._max_timestamp, segment.max_timestamp)
        for segment in self._unsynced:
            self._opened.pin(segment)
        if found.notes:
            self._tidy(force=True)

    def __repr__(self) -> str:
        return f"Partition({self.name}, {self._start}..{self._end})"

    @property
    def name(self) -> str:
        """Topic and number, for messages."""
        return f"{self.topic.name}-{self.index}"

    @property
    def start_offset(self) -> int:
        """First offset that may be read."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Offset that the next record will get; also the high watermark."""
        return self._end

    @property
    def flushed_offset(self) -> int:
        """Offset before which everything has been synced to disk. It only grows."""
        return self._flushed

    @property
    def cleaned_offset(self) -> int:
        """Offset before which the log has been compacted."""
        return self._cleaned

    @property
    def last_stable_offset(self) -> int:
        """Offset before which no transaction is open."""
        unstable = self._producers.first_unstable
        if unstable is None:
            return self._end
        # Retention may have taken the beginning of a transaction that hangs.
        return unstable if unstable > self._start else self._start

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of a record that is still there, epoch ms; -1 if there is none."""
        return max(s.max_timestamp for s in self._table[1])

    @property
    def size(self) -> int:
        """Bytes of all segments' files, without indexes."""
        return sum(s.size for s in self._table[1])

    @property
    def segments(self) -> list[Segment]:
        """The segments in order, the last one active. Not to be changed."""
        return self._table[1]

    @property
    def producers(self) -> Mapping[int, Producer]:
        """State of each idempotent producer, by its id."""
        return self._producers.view

    # Appending

    def append(self, batches: bytearray | memoryview, now: int, *, internal: bool = False) -> Appended:
        """Append one or more record batches of format 2 as they came from a producer; `now` is epoch ms.

        Everything is checked before a byte is written; a LogError with Kafka's code says what is wrong. Base offset
        and leader epoch are set in `batches` itself, for LogAppendTime also timestamp and checksum. `internal` is for
        coordinators: they may write control batches, and need not number their batches.
        """
        config = self.topic.config
        found = split(batches if type(batches) is memoryview else memoryview(batches))
        with self._lock:
            if self.failed is not None:
                raise StorageError(f"{self.name} has failed: {self.failed}")
            if self._closed:
                raise UnknownTopic(f"{self.name} is closed or has been deleted")
            appended = self._append(batches, found, config, now, internal)
        if self.listeners and not appended.duplicate:
            for listener in tuple(self.listeners):
                listener(self)
        return appended

    def _append(
        self,
        batches: bytearray | memoryview,
        found: list[tuple[memoryview, Head]],
        config: TopicConfig,
        now: int,
        internal: bool,
    ) -> Appended:
        offset = end = self._end
        changes: dict[int, Producer] | None = None
        steps: list[states.Step] = []
        repeated: Sent | None = None
        newest = -1
        for batch, head in found:
            examine(batch, head, config, now, internal)
            if head[9] >= 0:
                if changes is None:
                    changes = {}
                duplicate = self._note_producer(batch, head, offset, now, internal, changes, steps)
                if duplicate is not None:
                    repeated = duplicate if repeated is None else repeated._replace(last_offset=duplicate[3])
                    continue
            if repeated is not None:
                raise OutOfOrderSequence(f"{self.name}: new batches and repeated ones in one append")
            offset += head[6] + 1
            if head[8] > newest:
                newest = head[8]
        stamp = now if config.log_append_time else -1
        if repeated is not None:
            if offset != end:
                raise OutOfOrderSequence(f"{self.name}: new batches and repeated ones in one append")
            return Appended(repeated[2], repeated[3], stamp, self._start, True)
        size = len(batches)
        segment = self._active
        if (
            segment.size + size > config.segment_bytes
            or offset - segment.base > MAX_SIZE
            or (segment.size and self._is_old(segment, now if stamp >= 0 else newest, now, config.segment_ms))
        ):
            segment = self._make_room(segment, size, config, now)

        offset = end
        for batch, head in found:
            _OFFSET.pack_into(batch, 0, offset)
            _EPOCH.pack_into(batch, _EPOCH_OFFSET, LEADER_EPOCH)
            if stamp >= 0 or head[5] & LOG_APPEND_TIME:
                _stamp(batch, head, stamp)
            offset += head[6] + 1
        position = segment.size
        file = segment.file
        assert file is not None, "the active segment is open"
        try:
            if os.pwrite(file.fd, batches, position) != size:
                write_all(file.fd, batches, position)
        except OSError as error:
            self._undo(file, position, error)
        if failpoints.tripped:
            failpoints.reach(failpoints.APPEND_WRITTEN)

        interval = config.index_interval_bytes
        offset = end
        for batch, head in found:
            last = offset + head[6]
            length = len(batch)
            latest = stamp if stamp >= 0 else head[8]
            segment.note(offset, last, latest, position, length, interval, stamp if stamp >= 0 else head[7])
            position += length
            offset = last + 1
        if steps:
            self._keep_producers(steps, segment)
        self._appended_bytes += size
        self._end = offset
        return Appended(end, offset - 1, stamp, self._start, False)

    def _note_producer(
        self,
        batch: memoryview,
        head: Head,
        offset: int,
        now: int,
        internal: bool,
        changes: dict[int, Producer],
        steps: list[states.Step],
    ) -> Sent | None:
        producer_id, epoch = head[9], head[10]
        state = changes.get(producer_id) or self._producers.get(producer_id)
        if head[5] & CONTROL:
            try:
                said = marker(batch)
            except RecordsError as error:
                raise StorageError(f"{self.name}: an unreadable control batch: {error}") from error
            if said is not None:
                after = states.ended(state, producer_id, epoch, said, head[8], now)
                changes[producer_id] = after
                steps.append((producer_id, after, offset, said.commit))
            return None
        first = head[11]
        last = (first + head[6]) & MAX_SEQUENCE if first >= 0 else first
        if not internal:
            duplicate = states.duplicate(state, epoch, first, last)
            if duplicate is not None:
                return duplicate
        transactional = bool(head[5] & TRANSACTIONAL)
        sent = Sent(first, last, offset, offset + head[6], head[8])
        try:
            after = states.sent(state, producer_id, epoch, sent, now, transactional=transactional, client=not internal)
        except states.REFUSALS as error:
            raise type(error)(f"{self.name}: {error}") from None
        changes[producer_id] = after
        steps.append((producer_id, after, offset, None))
        return None

    def _keep_producers(self, steps: list[states.Step], segment: Segment) -> None:
        for producer_id, after, offset, commit in steps:
            if commit is None:
                self._producers.put(producer_id, after)
                continue
            aborted = self._producers.end(producer_id, after, commit, offset)
            if aborted is not None:
                assert segment.index is not None
                segment.index.aborted.append(aborted)
                segment.aborted += 1

    @staticmethod
    def _is_old(segment: Segment, newest: int, now: int, segment_ms: int) -> bool:
        # Kafka's rule: the span of the messages' own times, or the age of the file when they carry none.
        if segment.first_timestamp >= 0 and newest >= 0:
            return newest - segment.first_timestamp > segment_ms
        return now - segment.created_ms > segment_ms

    def _make_room(self, segment: Segment, size: int, config: TopicConfig, now: int) -> Segment:
        if size > config.segment_bytes:
            raise BatchesTooLarge(
                f"{self.name}: an append of {size} bytes: segment.bytes allows {config.segment_bytes}"
            )
        return self._roll(now) if segment.size else segment

    def _undo(self, file: File, position: int, error: OSError) -> None:
        try:
            os.ftruncate(file.fd, position)
        except OSError as second:
            self.failed = (
                f"a write failed ({error.strerror}) and could not be undone ({second.strerror}); restart the log"
            )
        why = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}.get(
            error.errno or 0, error.strerror or str(error)
        )
        raise StorageError(f"{self.name}: nothing was appended, {why}; it works again when the disk does") from error

    def _roll(self, now: int) -> Segment:
        old, base = self._active, self._end
        new = Segment(self.folder, base, now)
        try:
            new.file = File(new.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise StorageError(f"{self.name}: no new segment could be made: {error.strerror}") from error
        failpoints.reach(failpoints.ROLL_CREATED)
        new.index = Index()
        new.rebuild = self._rebuild
        new.trusted_from = 0
        old.trusted_from = MAX_SIZE
        bases, segments = self._table
        self._table = ([*bases, base], [*segments, new])
        self._active = new
        self._folder_dirty = True
        self._unsynced.append(old)
        self._waiting_snapshots[base] = self._producers.copy()
        failpoints.reach(failpoints.ROLL_DONE)
        if len(self._waiting_snapshots) > MAX_UNTIDY:
            self._tidy_locked()
        return new

    # Reading

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> Read:
        """Whole batches from the one that holds `offset` on: about `max_bytes`, at least one however large.

        With `committed` only what is before the last stable offset, and the aborted transactions to skip in it.
        OffsetOutOfRange before the start or behind the end; CorruptMessage when the batch is damaged on disk.
        """
        start, end = self._start, self._end
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{self.name} holds offsets {start} to {end - 1}, {offset} was asked for")
        stable = self.last_stable_offset
        limit = stable if committed else end
        if self.failed is not None:
            limit = min(limit, self._flushed)
            if offset > limit:
                raise StorageError(f"{self.name} has failed: {self.failed}")
        if offset >= limit:
            if offset == end:
                self._remember(end, self._active, self._active.size)
            return Read([], start, end, stable, [], offset)
        slices: list[Slice] = []
        bases, segments = self._table
        place = max(0, bisect_right(bases, offset) - 1)
        first = place
        room = max_bytes
        following = offset
        while place < len(segments) and (room > 0 or not slices) and len(slices) < MAX_SLICES and following < limit:
            segment = segments[place]
            if segment.end_offset > following:
                try:
                    piece = self._piece(segment, following, limit, room, slices)
                except LogError:
                    if slices:
                        break  # What comes before the damage is served; the next read meets it first.
                    raise
                if piece is None:
                    if slices:
                        break
                else:
                    room -= piece.stop - piece.position
                    following = piece.next_offset
                    if following < segment.end_offset:
                        break
            following = max(following, segments[place + 1].base) if place + 1 < len(segments) else following
            place += 1
        following = min(following, limit)
        aborted = self._aborted(segments[first:], offset, following) if committed else []
        return Read(slices, start, end, stable, aborted, following)

    def _piece(self, segment: Segment, offset: int, limit: int, room: int, slices: list[Slice]) -> reading.Piece | None:
        file, index = self._opened.get(segment)
        known = self._cursors.get(offset)
        one = not slices
        try:
            if known is not None and known[0] is segment:
                position = known[1]
            else:
                position = reading.locate(segment, file, index, offset)
            if position >= segment.trusted_from:
                piece = reading.trusted(segment, file, index, position, offset, limit, room, one=one)
            elif position < segment.size:
                piece = reading.verified(segment, file, position, offset, limit, room, one=one)
            else:
                piece = None
        except OSError as error:
            raise StorageError(f"{segment.name} cannot be read: {error.strerror}") from error
        if piece is not None:
            slices.append(Slice(file, piece.position, piece.stop - piece.position))
            self._remember(piece.next_offset, segment, piece.stop)
        return piece

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        cursors = self._cursors
        if len(cursors) >= MAX_CURSORS and offset not in cursors:
            del cursors[next(iter(cursors))]
        cursors[offset] = segment, position

    def _aborted(self, segments: list[Segment], offset: int, upper: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for segment in segments:
            if segment.aborted:
                for entry in self._opened.get(segment)[1].aborted:
                    if entry.last_offset >= offset and entry.first_offset < upper:
                        found.append((entry.producer_id, entry.first_offset))
                    if entry.last_stable_offset >= upper:
                        return found
        return found

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record not older than `timestamp` (epoch ms); None if all are older."""
        start = self._start
        for segment in self._table[1]:
            if segment.max_timestamp >= timestamp and segment.end_offset > start:
                file, index = self._opened.get(segment)
                found = reading.at_time(segment, file, index, timestamp, start)
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None if there are no timestamps."""
        best = max(self._table[1], key=lambda s: s.max_timestamp)
        if best.max_timestamp < 0:
            return None
        return self.offset_for_time(best.max_timestamp)

    # Work that blocks

    def delete_before(self, offset: int) -> int:
        """Make `offset` the new start (-1: the end); earlier records are gone for readers, their files soon after.

        Returns the start, which never moves back. OffsetOutOfRange behind the end. On disk when it returns.
        """
        with self._lock:
            if offset == -1:
                offset = self._end
            if not 0 <= offset <= self._end:
                raise OffsetOutOfRange(f"{self.name} ends at {self._end}, records before {offset} cannot be deleted")
            if offset <= self._start:
                return self._start
            self._start = offset
        self._save(sync=True)
        return offset

    def flush(self) -> None:
        """Sync everything appended so far to disk; `flushed_offset` then covers it.

        StorageError when the disk refuses, and from then on: what the kernel did with the pages is unknown, so the
        partition takes no more appends until the log is opened again.
        """
        with self._flushing:
            with self._lock:
                if self.failed is not None:
                    raise StorageError(f"{self.name} has failed: {self.failed}")
                end = self._end
                if end == self._flushed and not self._folder_dirty:
                    return
                closed = list(self._unsynced)
                files = [s.file for s in closed] + [self._active.file]
                dirty, self._folder_dirty = self._folder_dirty, False
            try:
                for file in files:
                    if file is not None:
                        os.fdatasync(file.fd)
                if dirty:
                    sync_folder(self.folder)
            except OSError as error:
                self.failed = f"the disk refused to sync ({error.strerror}); check the disk and start the log again"
                raise StorageError(f"{self.name} has failed: {self.failed}") from error
            with self._lock:
                self._flushed = max(self._flushed, end)
                self._unsynced = [s for s in self._unsynced if s not in closed]

    def checkpoint(self) -> None:
        """Sync, and write what spares the next start the scan of the active segment."""
        with self._work:
            self._checkpoint()

    def _checkpoint(self, *, closing: bool = False) -> None:
        with self._lock:
            segment, end = self._active, self._end
            assert segment.index is not None
            copy = Index()
            copy.offsets, copy.times = segment.index.offsets[:], segment.index.times[:]
            copy.aborted = list(segment.index.aborted)
            facts = segment.facts
            entries = self._producers.copy()
            appended = self._appended_bytes
        self.flush()
        failpoints.reach(failpoints.FLUSH_SYNCED)
        self._tidy()
        replace(segment.index_path, indexes.dump(copy, facts), point=failpoints.INDEX_WRITTEN, sync=closing)
        self._save_snapshot(end, entries, sync=closing)
        with self._lock:
            self._saved_bytes = appended
        self._save(sync=True, end=end if closing else -1, size=facts.size if closing else -1, flushed=end)
        keep = {end, *self._table[0]}
        for offset in self._snapshots - keep:
            (self.folder / file_name(offset, "snapshot")).unlink(missing_ok=True)
        self._snapshots &= keep

    def _save(self, *, sync: bool, end: int = -1, size: int = -1, flushed: int | None = None) -> None:
        with self._saving:
            self._saved = msgspec.structs.replace(
                self._saved,
                start=self._start,
                cleaned=self._cleaned,
                flushed=self._saved.flushed if flushed is None else flushed,
                end=end,
                size=size,
            )
            try:
                checkpoints.write(self.folder, self._saved, sync=sync)
            except OSError as error:
                raise StorageError(f"{self.name}: the checkpoint cannot be written: {error.strerror}") from error

    def _save_snapshot(self, offset: int, entries: Mapping[int, Producer], *, sync: bool = False) -> None:
        replace(
            self.folder / file_name(offset, "snapshot"),
            states.dump(entries, offset),
            point=failpoints.SNAPSHOT_WRITTEN,
            sync=sync,
        )
        self._snapshots.add(offset)

    def _tidy(self, *, force: bool = False) -> None:
        # Write indexes and snapshots of segments that were closed since, and let their files be closed.
        with self._lock:
            waiting, self._waiting_snapshots = self._waiting_snapshots, {}
            closed = [s for s in self._table[1][:-1] if s.index is not None and not s.index_saved]
        for offset, entries in waiting.items():
            self._save_snapshot(offset, entries)
        for segment in closed:
            segment.save_index()
            segment.index_saved = True
        with self._lock:
            for segment in self._table[1][:-1]:
                if segment.index_saved and segment.file is not None and segment not in self._unsynced:
                    self._opened.release(segment)

    def _tidy_locked(self) -> None:
        for offset, entries in self._waiting_snapshots.items():
            self._save_snapshot(offset, entries)
        self._waiting_snapshots = {}
        for segment in self._table[1][:-1]:
            if segment.index is not None and not segment.index_saved:
                segment.save_index()
                segment.index_saved = True

    def _rebuild(self, segment: Segment) -> Index:
        # The index of a closed segment turned out to be damaged while running: compute it again.
        file = segment.file or File(segment.path, os.O_RDONLY)
        again = compaction.index_of(segment, file)
        if segment.aborted:
            state = states.Producers()
            begin = self._table[0][0]
            for offset in sorted((o for o in self._snapshots if o <= segment.base), reverse=True):
                entries = read_snapshot(self.folder, offset)
                if entries is not None:
                    state.fill(entries)
                    begin = offset
                    break
            for earlier in self._table[1]:
                if begin < earlier.end_offset and earlier.base < segment.base:
                    replay(File(earlier.path, os.O_RDONLY), earlier, begin, state, None, 0)
            replay(file, segment, max(begin, segment.base), state, again, 0)
        return again

    def maintain(self, now: int) -> bool:
        """One bounded step of whatever is due: sync, checkpoint, retention, compaction. Whether there was any."""
        if self._closed or self.failed is not None:
            return False
        with self._work:
            config = self.topic.config
            self._expire_producers(now)
            if (
                config.durability == "interval"
                and self._end > self._flushed
                and now - self._last_flush_ms >= config.flush_interval_ms
            ):
                self._last_flush_ms = now
                self.flush()
                return True
            # Every other time only: under a load that closes a segment each second the rest wants its turn too.
            self._checkpoint_next = not self._checkpoint_next
            if self._checkpoint_next and self._checkpoint_due():
                self._checkpoint()
                return True
            with self._lock:
                active = self._active
                if active.size and now - active.created_ms > config.segment_ms:
                    self._roll(now)
                    return True
            if self._retain(now):
                return True
            if config.compact and compaction.compact(self, now):
                return True
            return self._checkpoint_due()

    def _checkpoint_due(self) -> bool:
        return bool(
            self._unsynced or self._waiting_snapshots or self._appended_bytes - self._saved_bytes > CHECKPOINT_BYTES
        )

    def _expire_producers(self, now: int) -> None:
        gone = self._producers.expired(now, self.topic.producer_expiration_ms)
        if gone:
            with self._lock:
                # Again, now that no append is under way: one of them may have come back.
                self._producers.forget(self._producers.expired(now, self.topic.producer_expiration_ms))

    def _retain(self, now: int) -> bool:
        config = self.topic.config
        segments = self._table[1]
        count = retention.deletable(
            [retention.Piece(s.base, s.size, s.end_offset, self._newest(s, config.delete)) for s in segments],
            start=self._start,
            now=now,
            retention_ms=config.retention_ms if config.delete else -1,
            retention_bytes=config.retention_bytes if config.delete else -1,
            limit=self._end,
        )
        if count == 0:
            return False
        with self._lock:
            if count == len(segments):
                self._roll(now)
            self._start = max(self._start, self._table[0][count])
        self._save(sync=False)
        failpoints.reach(failpoints.DELETE_BEGUN)
        self.swap(segments[:count], None)
        for segment in segments[:count]:
            remove_segment_files(segment)
            self._snapshots.discard(segment.base)
            failpoints.reach(failpoints.DELETE_ONE)
        return True

    @staticmethod
    def _newest(segment: Segment, matters: bool) -> int:
        if segment.max_timestamp >= 0 or not matters or not segment.size:
            return segment.max_timestamp
        return int(segment.path.stat().st_mtime * 1000)

    def pin(self, segments: list[Segment]) -> None:
        """Keep the files of these segments open while anybody reads them: their names are about to change."""
        for segment in segments:
            self._opened.pin(segment)

    def swap(self, old: list[Segment], new: Segment | None) -> None:
        """Put `new` (or nothing) in the place of `old` for readers; who reads the old ones keeps their files."""
        self.pin(old)
        with self._lock:
            gone = set(map(id, old))
            segments: list[Segment] = []
            for segment in self._table[1]:
                if id(segment) not in gone:
                    segments.append(segment)
                elif new is not None and segment is old[0]:
                    segments.append(new)
            self._table = ([s.base for s in segments], segments)
            self._unsynced = [s for s in self._unsynced if id(s) not in gone]

    def set_cleaned(self, offset: int) -> None:
        """Note how far compaction has come."""
        self._cleaned = max(self._cleaned, offset)
        self._save(sync=False)

    @property
    def opened(self) -> OpenSegments:
        """The files that the log keeps open."""
        return self._opened

    def abandon(self) -> None:
        """Take no more appends, because the topic is being deleted. Does not wait for work under way."""
        self.stopping = True
        with self._lock:
            self._closed = True
        self.pin(self._table[1])

    def close(self) -> None:
        """Take no more appends; sync and write everything that makes the next start fast."""
        self.stopping = True
        with self._work:
            if self._closed:
                return
            with self._lock:
                self._closed = True
            if self.failed is None:
                self._checkpoint(closing=True)
            for segment in self._table[1]:
                self._opened.drop(segment)


def _stamp(batch: memoryview, head: Head, stamp: int) -> None:
    # The type of the timestamps and the newest one are the topic's business, so the checksum is made again.
    attributes = head[5] | LOG_APPEND_TIME if stamp >= 0 else head[5] & ~LOG_APPEND_TIME
    fields = list(HEADER.unpack_from(batch))
    fields[5] = attributes
    if stamp >= 0:
        fields[8] = stamp
    _pack_header(batch, 0, *fields)
    seal(batch)
