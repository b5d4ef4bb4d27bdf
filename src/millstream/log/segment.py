"""One segment of a partition: its file of record batches, what is known about it, and the files kept open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millstream.log import failpoints
from millstream.log import index as indexes
from millstream.log.errors import NotHere, StorageError
from millstream.log.files import File, replace
from millstream.log.index import Facts, Index

if TYPE_CHECKING:
    from millstream.log.archive import Cache, Entry

MAX_OPEN: Final = 256
"""Closed segments kept open: stops a long log from using up the process's file descriptors."""
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Memory for the indexes of closed segments: beyond it the least recently used are dropped and read again later."""
MAX_SIZE: Final = 2**31 - 1
"""Bytes of a segment and span of its offsets, as in Kafka: positions and relative offsets fit into 32 bits."""


def file_name(base: int, suffix: str) -> str:
    """The name of a segment's file: its base offset in twenty digits."""
    return f"{base:020d}.{suffix}"


class Segment:
    """The batches from offset `base` to before `end_offset`. Appended to while active, then closed for good.

    `gaps` says that offsets may be missing inside (compaction took them). `trusted_from` is the byte from which this
    process wrote the file itself; what lies before is checked when it is read. `remote` is its entry in the archive;
    a segment that is not `local` is only there.
    """

    __slots__ = (
        "aborted",
        "base",
        "created_ms",
        "end_offset",
        "file",
        "first_timestamp",
        "gaps",
        "index",
        "index_saved",
        "local",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "pinned",
        "rebuild",
        "remote",
        "size",
        "trusted_from",
    )

    def __init__(self, folder: Path, base: int, created_ms: int = 0) -> None:
        self.base = base
        self.path = folder / file_name(base, "log")
        self.size = 0
        self.end_offset = base
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self.gaps = False
        self.aborted = 0
        self.created_ms = created_ms
        self.file: File | None = None
        self.index: Index | None = None
        self.index_saved = False
        self.pinned = False
        self.local = True
        self.remote: Entry | None = None
        self.trusted_from = MAX_SIZE
        self.rebuild: Callable[[Segment], Index] | None = None

    @property
    def index_path(self) -> Path:
        """Where the index is kept."""
        return self.path.with_suffix(".index")

    @property
    def name(self) -> str:
        """The file, for messages."""
        return str(self.path)

    @property
    def facts(self) -> Facts:
        """What the index file says about the segment."""
        return Facts(
            self.size,
            self.end_offset,
            self.first_timestamp,
            self.max_timestamp,
            self.max_timestamp_offset,
            self.gaps,
            self.aborted,
        )

    def learn(self, facts: Facts) -> None:
        """Take over what an index file says."""
        self.size = facts.size
        self.end_offset = facts.end_offset
        self.first_timestamp = facts.first_timestamp
        self.max_timestamp = facts.max_timestamp
        self.max_timestamp_offset = facts.max_timestamp_offset
        self.gaps = facts.gaps
        self.aborted = facts.aborted

    def note(
        self, base: int, last: int, max_timestamp: int, position: int, size: int, interval: int, first_timestamp: int
    ) -> None:
        """Count in a batch that stands at `position` at the end of the file, and index it when one is due."""
        index = self.index
        assert index is not None, "only a segment with its index in memory grows"
        offsets = index.offsets
        if position >= (offsets[-1] & 0xFFFF_FFFF) + interval if offsets else True:
            index.add(base - self.base, position, self.max_timestamp)
        self.size = position + size
        self.end_offset = last + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last
        if self.first_timestamp < 0:
            self.first_timestamp = first_timestamp

    def save_index(self, index: Index) -> None:
        """Write `index`, which is the segment's, to its file."""
        replace(self.index_path, indexes.dump(index, self.facts), point=failpoints.INDEX_WRITTEN, sync=False)
        self.index_saved = True

    def load_index(self) -> Index | None:
        """The index from its file; None when it is missing, damaged or not of this log file."""
        try:
            found = indexes.load(self.index_path.read_bytes())
        except OSError:
            return None
        if found is None or found[1].size != self.size:
            return None
        return found[0]


class OpenSegments:
    """Files and indexes of closed segments, the least recently used closed first. Safe to use from several threads."""

    def __init__(self, cache: Cache, max_open: int = MAX_OPEN, max_index_bytes: int = MAX_INDEX_BYTES) -> None:
        self.cache = cache
        self._max_open = max_open
        self._max_index_bytes = max_index_bytes
        self._index_bytes = 0
        self._open: OrderedDict[Segment, tuple[File, Index]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, segment: Segment) -> tuple[File, Index]:
        """The segment's file and index, opened when necessary.

        StorageError when it cannot be opened, NotHere when it has to be fetched from the archive first.
        """
        file, index = segment.file, segment.index
        if file is not None and index is not None:
            return file, index
        if not segment.local:
            return self.cache.get(segment)
        with self._lock:
            return self._get(segment)

    def index(self, segment: Segment) -> Index:
        """The segment's index alone, which stays here when the segment is archived. As `get`."""
        if segment.local or segment.index is not None:
            return self.get(segment)[1]
        try:
            return self.cache.get(segment)[1]
        except NotHere:
            found = segment.load_index()
            if found is None:
                raise
            return found

    def pin(self, segment: Segment) -> None:
        """Keep the segment's file and index open for as long as the segment itself is referred to.

        To be called before its file is renamed or removed, so that nobody opens another one by its name.
        """
        if not segment.local:
            return  # Who reads it holds its file, and nobody opens it by its name.
        with self._lock:
            segment.file, segment.index = self._get(segment)
            segment.pinned = True
            self._forget(segment)

    def release(self, segment: Segment) -> None:
        """Let a segment that was kept open, because it was active, take part in the bound; not one that is pinned."""
        with self._lock:
            if not segment.pinned:
                segment.file = segment.index = None

    def drop(self, segment: Segment) -> None:
        """Forget the segment; who holds its file keeps it."""
        with self._lock:
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        found = self._open.pop(segment, None)
        if found is not None:
            self._index_bytes -= found[1].memory

    def _get(self, segment: Segment) -> tuple[File, Index]:
        if segment.file is not None and segment.index is not None:
            return segment.file, segment.index
        found = self._open.get(segment)
        if found is not None:
            self._open.move_to_end(segment)
            return found
        try:
            file = segment.file or File(segment.path, os.O_RDONLY)
        except OSError as error:
            if not segment.local:
                return self.cache.get(segment)  # Its local copy was removed this moment.
            raise StorageError(f"{segment.name} cannot be opened: {error.strerror}") from error
        index = segment.index or segment.load_index()
        if index is None:
            assert segment.rebuild is not None, "a segment in a partition knows how to compute its index again"
            index = segment.rebuild(segment)
        self._open[segment] = file, index
        self._index_bytes += index.memory
        while len(self._open) > 1 and (len(self._open) > self._max_open or self._index_bytes > self._max_index_bytes):
            _, (_, evicted) = self._open.popitem(last=False)
            self._index_bytes -= evicted.memory
        return file, index
