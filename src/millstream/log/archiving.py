"""A partition and its archive: copying, freeing local copies, fetching back, removing. Blocks; see archive.py.

Copying and removing run on threads of their own (`archive`), so that a slow store holds no other upkeep up; only who holds
`_archiving` writes `archive.json`. Freeing local copies is a part of maintenance. `fetch` may run on any thread.
"""

from __future__ import annotations

import contextlib

from millstream.log import archive, failpoints, recovery, retention
from millstream.log.archive import Entry
from millstream.log.errors import ArchiveError
from millstream.log.fetched import NotHere
from millstream.log.segment import Segment, file_name
from millstream.log.state import State


class Archiving(State):
    """What a partition does with its archive."""

    @property
    def local_start_offset(self) -> int:
        """First offset that can be read without the archive."""
        return max(self._start, next(s.base for s in self._table[1] if s.local))

    @property
    def archive_root(self) -> str:
        """The archive that `archive` would use; empty when there is nothing to do, and will not be."""
        return archive.root(self._doomed[0].url) if self._doomed else self.topic.config.archive.rstrip("/")

    @property
    def archived_offset(self) -> int:
        """Offset before which everything is in the archive; the start when nothing is."""
        found = self._start
        for segment in self._table[1]:
            if segment.remote is None:
                break
            found = max(found, segment.end_offset)
        return found

    def archive(self, now: int) -> bool:
        """One step of what the archive is due: remove or copy a segment. Whether there was any. ArchiveError."""
        if self._closed or self.failed is not None or now < self._archive_after:
            return False
        # Another thread may still be at it when the topic's archive is another one since.
        if not self._archiving.acquire(blocking=False):
            return False
        try:
            return self._remove_one() or self._copy_one()
        except ArchiveError:
            self._archive_after = now + archive.RETRY_MS
            raise
        finally:
            self._archiving.release()

    def _note(self) -> None:
        try:
            archive.write(self.folder, [self._remote[base] for base in sorted(self._remote)])
        except OSError as error:
            raise ArchiveError(f"{self.name}: {archive.NAME} cannot be written: {error.strerror}") from error

    def _remove_one(self) -> bool:
        if not self._doomed:
            return False
        gone = self._doomed[0]
        archive.remove(gone)
        failpoints.reach(failpoints.ARCHIVE_REMOVED)
        self._remote.pop(gone.base, None)
        self._note()
        self._doomed.pop(0)
        return True

    def _copy_one(self) -> bool:
        config = self.topic.config
        bound = min(self.high_watermark, self.last_stable_offset)
        segment = next((s for s in self._table[1][:-1] if s.remote is None), None)
        if not config.archive or segment is None or not segment.index_saved or segment.end_offset > bound:
            return False
        url = archive.place(config.archive, self.topic.name, self.topic.id, self.index)
        file, index = self._opened.get(segment)
        found = archive.entry(segment.base, segment.facts, url)
        archive.store(found, file, index, lambda: not self.stopping)
        if self._closed:
            return False  # Somebody else may have the folder by now; the copy is made again.
        self._remote[segment.base] = found
        self._note()
        failpoints.reach(failpoints.ARCHIVE_NOTED)
        with self._lock:
            segment.remote = found
            if all(s is not segment for s in self._table[1]):
                self._doomed.append(found)  # Retention took it while it was copied.
        return True

    def _free_local(self, now: int) -> bool:
        """Remove local copies that have outlived local retention and are in the archive."""
        config = self.topic.config
        local = [s for s in self._table[1] if s.local]
        count = retention.deletable(
            [retention.Piece(s.base, s.size, s.end_offset, s.max_timestamp) for s in local],
            start=-1,
            now=now,
            retention_ms=config.retention_ms if config.local_retention_ms == -2 else config.local_retention_ms,
            retention_bytes=config.retention_bytes
            if config.local_retention_bytes == -2
            else config.local_retention_bytes,
            limit=self.archived_offset,
        )
        freed = [s for s in local[: min(count, len(local) - 1)] if s.remote is not None and s.index_saved]
        for segment in freed:
            segment.local = False
            self._opened.drop(segment)
            self._opened.release(segment)
            failpoints.reach(failpoints.ARCHIVE_FREEING)
            segment.path.unlink(missing_ok=True)
            (self.folder / file_name(segment.base, "snapshot")).unlink(missing_ok=True)
            self._snapshots.discard(segment.base)
            failpoints.reach(failpoints.ARCHIVE_FREED)
        with self._lock:
            gone = set(map(id, freed))
            self._unsynced = [s for s in self._unsynced if id(s) not in gone]
        return bool(freed)

    def _leave_archive(self, segments: list[Segment]) -> None:
        """These are no longer part of the log: their copies in the archive are to go."""
        for segment in segments:
            self._opened.cache.drop(segment)
            if segment.remote is not None:
                self._doomed.append(segment.remote)

    def fetch(self, missing: NotHere) -> None:
        """Bring here what a read has missed, so that it succeeds. Blocks. ArchiveError."""
        extent = missing.extent
        segment, found = extent.segment, extent.segment.remote
        if segment.local or found is None:
            return
        self._fetch_index(segment, found)
        cache = self._opened.cache
        if not extent.stop or extent in cache:
            return
        cache.put(extent, archive.fetch(found, cache.folder, extent.start, extent.stop))
        if all(s is not segment for s in self._table[1]):
            cache.drop(segment)  # Retention took it while it was fetched.

    def _fetch_index(self, segment: Segment, found: Entry) -> None:
        with contextlib.suppress(NotHere):
            self._opened.index(segment)
            return
        index = archive.fetch_index(found)
        if index is None:
            if found.aborted:
                raise ArchiveError(
                    f"{segment.index_path} is lost here and in {found.url}: it says which transactions were aborted, "
                    f"without it offsets {found.base} to {found.end - 1} cannot be read"
                )
            index = recovery.index_of(archive.source(found), segment)
        self._opened.keep_index(segment, index)
        with contextlib.suppress(OSError):  # It serves from memory while the disk is full.
            segment.save_index(index)
