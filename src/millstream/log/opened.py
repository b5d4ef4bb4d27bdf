"""The files and indexes of closed segments that are kept open, within bounds."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from millstream.log.errors import StorageError
from millstream.log.fetched import Cache, Extent, NotHere
from millstream.log.files import File
from millstream.log.index import Index
from millstream.log.segment import Segment

MAX_OPEN: Final = 256
"""Closed segments kept open: stops a long log from using up the process's file descriptors."""
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Memory for the indexes of closed segments: beyond it the least recently used are dropped and read again later."""


class OpenSegments:
    """Files and indexes of closed segments, the least recently used closed first. Safe to use from several threads.

    Of a segment that is only in the archive the index alone is kept here; `cache` has what was fetched of it.
    """

    def __init__(self, cache: Cache, max_open: int = MAX_OPEN, max_index_bytes: int = MAX_INDEX_BYTES) -> None:
        self.cache = cache
        self._max_open = max_open
        self._max_index_bytes = max_index_bytes
        self._index_bytes = 0
        self._open: OrderedDict[Segment, tuple[File | None, Index]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, segment: Segment) -> tuple[File, Index]:
        """The segment's file and index, opened when necessary.

        StorageError when it cannot be opened, NotHere when its local copy was removed this moment.
        """
        file, index = segment.file, segment.index
        if file is not None and index is not None:
            return file, index
        with self._lock:
            return self._get(segment)

    def index(self, segment: Segment) -> Index:
        """The segment's index alone, which stays here when the segment is archived.

        NotHere when it is missing or damaged and has to be fetched from the archive. As `get`.
        """
        if segment.index is not None:
            return segment.index
        if segment.local:
            return self.get(segment)[1]
        with self._lock:
            found = self._open.get(segment)
            if found is not None:
                self._open.move_to_end(segment)
                return found[1]
            index = segment.load_index()
            if index is None:
                raise NotHere(
                    f"{segment.index_path} is missing or damaged and has to be fetched", Extent(segment, 0, 0)
                )
            self._keep(segment, None, index)
            return index

    def keep_index(self, segment: Segment, index: Index) -> None:
        """Keep the index of an archived segment, which has been fetched."""
        with self._lock:
            if segment not in self._open:
                self._keep(segment, None, index)

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

    def _keep(self, segment: Segment, file: File | None, index: Index) -> None:
        self._forget(segment)
        self._open[segment] = file, index
        self._index_bytes += index.memory
        while len(self._open) > 1 and (len(self._open) > self._max_open or self._index_bytes > self._max_index_bytes):
            _, (_, evicted) = self._open.popitem(last=False)
            self._index_bytes -= evicted.memory

    def _get(self, segment: Segment) -> tuple[File, Index]:
        if segment.file is not None and segment.index is not None:
            return segment.file, segment.index
        found = self._open.get(segment)
        if found is not None and found[0] is not None:
            self._open.move_to_end(segment)
            return found[0], found[1]
        try:
            file = segment.file or File(segment.path, os.O_RDONLY)
        except OSError as error:
            if not segment.local:
                raise NotHere(f"{segment.name} is in the archive since this moment", Extent(segment, 0, 0)) from None
            raise StorageError(f"{segment.name} cannot be opened: {error.strerror}") from error
        index = segment.index or segment.load_index()
        if index is None:
            assert segment.rebuild is not None, "a segment in a partition knows how to compute its index again"
            index = segment.rebuild(segment)
        self._keep(segment, file, index)
        return file, index
