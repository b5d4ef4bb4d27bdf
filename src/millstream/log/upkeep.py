"""A partition's upkeep, which blocks: sync, checkpoint, retention, compaction, closing. See state.py for its threads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from millstream.log import checkpoint as checkpoints
from millstream.log import compaction, failpoints, retention
from millstream.log import index as indexes
from millstream.log.appending import Appending
from millstream.log.archiving import Archiving
from millstream.log.config import TopicConfig
from millstream.log.errors import OffsetOutOfRange, StorageError
from millstream.log.files import File, replace, sync_folder
from millstream.log.index import Index
from millstream.log.opened import OpenSegments
from millstream.log.recovery import remove_segment_files
from millstream.log.segment import Segment, file_name
from millstream.log.traits import Traits

UNSAVED_BYTES: Final = 1024 * 1024 * 1024
CHECKPOINT_BYTES: Final = 128 * 1024 * 1024
CHECKPOINT_BATCHES: Final = 250_000
"""A partition is synced and its checkpoint written when this much was appended to it: its share of UNSAVED_BYTES among those that
are written to, but no less than CHECKPOINT_BYTES; or so many batches. Bounds the scan after a crash to a second or two."""
EXPIRY_CHECK_MS: Final = 60_000
"""How often producers are looked through for expired ones."""


class Upkeep(Appending, Archiving):
    """What keeps a partition in shape."""

    def __init__(self, topic: Traits, index: int, folder: Path, opened: OpenSegments, *, clean: bool, now: int) -> None:
        super().__init__(topic, index, folder, opened, clean=clean, now=now)
        # On a full disk reading continues: what could not be written is written later.
        with contextlib.suppress(OSError, StorageError):
            self._tidy()
            if checkpoints.read(folder) is None:
                self._save(sync=False)
            if topic.config.durability == "commit" and self._end > self._flushed:
                # What a killed process left in the kernel's hands may have been read before: it is made safe at once.
                self.flush()

    def delete_before(self, offset: int) -> int:
        """Make `offset` the new start (-1: the high watermark); earlier records are gone for readers, their files soon.

        Returns the start, which never moves back. OffsetOutOfRange behind the high watermark. On disk when it returns.
        """
        with self._lock:
            end = self.high_watermark
            if offset == -1:
                offset = end
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(f"{self.name} ends at {end}, records before {offset} cannot be deleted")
            # Compared with what is on disk: after a failed attempt the next one has to write it.
            if offset <= self._saved.start:
                return self._start
            self._start = max(self._start, offset)
        self._save(sync=True)
        return self._start

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
                active = self._active.file
                dirty, self._folder_dirty = self._folder_dirty, False
            try:
                for segment in closed:
                    # Retention may have taken it since; what compaction put in its place has been synced.
                    with contextlib.suppress(FileNotFoundError):
                        file = segment.file or File(segment.path, os.O_RDONLY)
                        os.fdatasync(file.fd)
                assert active is not None, "the active segment is open"
                os.fdatasync(active.fd)
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
            appended, batches = self._appended_bytes, self._appended_batches
        self.flush()
        failpoints.reach(failpoints.FLUSH_SYNCED)
        self._tidy()
        replace(segment.index_path, indexes.dump(copy, facts), point=failpoints.INDEX_WRITTEN, sync=closing)
        self._save_snapshot(end, entries, sync=closing)
        with self._lock:
            self._saved_bytes, self._saved_batches = appended, batches
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
                dropped=self.dropped[0],
                dropped_bytes=self.dropped[1],
            )
            try:
                checkpoints.write(self.folder, self._saved, sync=sync)
            except OSError as error:
                raise StorageError(f"{self.name}: the checkpoint cannot be written: {error.strerror}") from error

    def _tidy(self) -> None:
        # Write indexes and snapshots of segments that were closed since, and let their files be closed.
        with self._lock:
            waiting, self._waiting_snapshots = self._waiting_snapshots, {}
            closed = [(s, s.index) for s in self._table[1][:-1] if s.index is not None and not s.index_saved]
        for offset, entries in waiting.items():
            self._save_snapshot(offset, entries)
        for segment, index in closed:
            segment.save_index(index)
        with self._lock:
            for segment in self._table[1][:-1]:
                if segment.index_saved and segment.file is not None:
                    self._opened.release(segment)

    @property
    def unsaved_bytes(self) -> int:
        """What a start after a crash would scan."""
        return self._appended_bytes - self._saved_bytes

    def maintain(self, now: int, checkpoint_bytes: int) -> bool:
        """One bounded step of whatever is due: sync, checkpoint, retention, compaction. Whether there was any."""
        if self._closed or self.failed is not None:
            return False
        with self._work:
            if self._closed:
                return False
            config = self.topic.config
            self._expire_producers(now)
            if (
                # Of a `commit` topic only what nobody synced for so long, so that it becomes readable in any case.
                config.durability != "os"
                and self._end > self._flushed
                and now - self._last_flush_ms >= config.flush_interval_ms
            ):
                self._last_flush_ms = now
                self.flush()
                return True
            # Every other time only: under a load that closes a segment each second the rest wants its turn too.
            self._checkpoint_next = not self._checkpoint_next
            if self._checkpoint_next and self._checkpoint_due(checkpoint_bytes):
                self._checkpoint()
                return True
            with self._lock:
                active = self._active
                if active.size and now - active.created_ms > config.segment_ms:
                    self._roll(now)
                    return True
            if self._retain(now) or (self._remote and self._free_local(now)):
                return True
            if config.compact and self._compact(now):
                return True
            return self._checkpoint_due(checkpoint_bytes)

    def _compact(self, now: int) -> bool:
        # First the indexes of what was closed since: an append that rolls must not write one of a replaced segment.
        self._tidy()
        cleaned = compaction.compact(self, now, self.flush)
        if cleaned is not None:
            self._cleaned = max(self._cleaned, cleaned)
            self._save(sync=True)
        return cleaned is not None

    def _checkpoint_due(self, checkpoint_bytes: int) -> bool:
        return bool(
            self._unsynced
            or self._waiting_snapshots
            or self.unsaved_bytes > checkpoint_bytes
            or self._appended_batches - self._saved_batches > CHECKPOINT_BATCHES
        )

    def _expire_producers(self, now: int) -> None:
        expiration = self.topic.producer_expiration_ms
        if now - self._last_expiry_ms < min(EXPIRY_CHECK_MS, expiration // 100):
            return
        self._last_expiry_ms = now
        if self._producers.expired(now, expiration):
            with self._lock:
                # Again, now that no append is under way: one of them may have come back.
                self._producers.forget(self._producers.expired(now, expiration))

    def _overwrite(self, config: TopicConfig, now: int) -> None:
        segments = self._table[1]
        first = segments[0]
        if len(segments) == 1:
            return
        too_much = 0 <= config.retention_bytes <= sum(s.size for s in segments) - first.size
        if not too_much and not 0 <= config.retention_ms < now - first.max_timestamp < now:
            return
        # A worker that is at it would do the same as soon as it is done; the next append tries again.
        if self._work.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError, StorageError):  # The append has succeeded in any case.
                    self._retain(now, appending=True)
            finally:
                self._work.release()

    def _retain(self, now: int, *, appending: bool = False) -> bool:
        config = self.topic.config
        segments = self._table[1]
        count = retention.deletable(
            [retention.Piece(s.base, s.size, s.end_offset, self._newest(s, config.delete)) for s in segments],
            start=self._start,
            now=now,
            retention_ms=config.retention_ms if config.delete else -1,
            retention_bytes=config.retention_bytes if config.delete else -1,
            limit=self.high_watermark,
        )
        if appending:
            count = min(count, len(segments) - 1)
        if count == 0:
            return False
        with self._lock:
            if count == len(segments):
                self._roll(now)
            before = self._start
            self._start = max(before, self._table[0][count])
            if config.drop:
                self._count_dropped(self._start - before, sum(s.size for s in segments[:count]))
        if not appending:
            # Not needed to find the start again: the log begins where its first segment does.
            self._save(sync=True)
        failpoints.reach(failpoints.DELETE_BEGUN)
        self.swap(segments[:count], None)
        self._leave_archive(segments[:count])
        for segment in segments[:count]:
            remove_segment_files(segment)
            self._snapshots.discard(segment.base)
            failpoints.reach(failpoints.DELETE_ONE)
        return True

    def _count_dropped(self, count: int, size: int) -> None:
        self.dropped = self.dropped[0] + count, self.dropped[1] + size
        self.topic.overload.dropped_records += count
        self.topic.overload.dropped_bytes += size

    @staticmethod
    def _newest(segment: Segment, matters: bool) -> int:
        if segment.max_timestamp >= 0 or not matters or not segment.size or not segment.local:
            return segment.max_timestamp
        return int(segment.path.stat().st_mtime * 1000)

    def abandon(self) -> None:
        """Take no more appends and do no more work, because the topic is being deleted."""
        self.stopping = True
        # The folder's name may be given to another topic at once: nobody may still be writing into it.
        with self._work, self._lock:
            self._closed = True

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
