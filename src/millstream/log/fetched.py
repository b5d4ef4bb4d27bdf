"""Parts of archived segments that have been fetched: what they are, which is missing, and those that are here.

A read of an archived segment needs a few megabytes of it, so that is what is fetched: an extent, from one batch that the
segment's index notes to another. Boundaries depend on the index alone, so that all readers ask for the same extents.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

from millstream.log.errors import LogError
from millstream.log.files import File
from millstream.log.index import Index
from millstream.log.segment import Segment

EXTENT: Final = 8 * 1024 * 1024
"""Bytes of an extent, about (a larger batch makes it longer): bounds what one read brings here, and its time."""
MAX_CACHED: Final = 256
"""Extents kept, beside the bound of their bytes: each holds a file descriptor."""
MIN_CACHED: Final = 4
"""The newest extents, which stay whatever their size: those who waited for them must get to read them."""
LEAST_AHEAD: Final = 8
"""A cache for fewer extents is not read ahead into: what others are reading would go too early."""
AGAIN_SECONDS: Final = 60.0
"""A damaged extent is fetched again at most so often: more would not mend what is damaged in the store."""


class Extent(NamedTuple):
    """Bytes `start` to `stop` of an archived segment: whole batches. With `stop` 0: nothing but its index."""

    segment: Segment
    start: int
    stop: int


class NotHere(LogError, LookupError):
    """What is to be read is in the archive: `Partition.fetch` with this error, on a worker thread, brings it here."""

    code = 56

    def __init__(self, message: str, extent: Extent) -> None:
        super().__init__(message)
        self.extent = extent


def extent_at(segment: Segment, index: Index, position: int) -> Extent:
    """The extent of an archived segment that holds the byte at `position`."""
    part = position // EXTENT
    start = index.at_position(part * EXTENT)
    while True:
        part += 1
        stop = index.at_position(part * EXTENT) if part * EXTENT < segment.size else segment.size
        if stop > position:
            return Extent(segment, start, stop)
        start = stop


class Cache:
    """Fetched extents, the least recently used forgotten first when there are too many bytes or files.

    Who reads from one keeps its file. Safe to use from several threads.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.clock = time.monotonic
        self.bytes = 0
        self._found: OrderedDict[Extent, File] = OrderedDict()
        self._damaged: dict[Extent, float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, extent: Extent) -> bool:
        return extent in self._found

    def lacks(self, extent: Extent) -> bool:
        """Whether an extent is to be fetched that nobody needs yet."""
        return extent not in self._found and self.max_bytes >= LEAST_AHEAD * EXTENT

    def get(self, extent: Extent) -> File:
        """A file that holds the extent, at the same positions as in its segment; NotHere when it has to be fetched."""
        with self._lock:
            found = self._found.get(extent)
            if found is None:
                raise NotHere(f"{extent.segment.name} is in the archive and has to be fetched first", extent)
            self._found.move_to_end(extent)
            return found

    def put(self, extent: Extent, file: File) -> None:
        """Keep a fetched extent."""
        with self._lock:
            if extent in self._found:
                return
            self._found[extent] = file
            self.bytes += extent.stop - extent.start
            while len(self._found) > MIN_CACHED and (self.bytes > self.max_bytes or len(self._found) > MAX_CACHED):
                self._forget(next(iter(self._found)))

    def doubt(self, extent: Extent) -> None:
        """Say that an extent is damaged: forget it, and NotHere, so that it is fetched again, because the store's may be whole.

        Not when that has been tried a moment ago: then what is damaged is in the store.
        """
        now = self.clock()
        with self._lock:
            self._damaged = {e: t for e, t in self._damaged.items() if now - t < AGAIN_SECONDS}
            if extent in self._damaged:
                return
            self._damaged[extent] = now
            if extent in self._found:
                self._forget(extent)
        raise NotHere(f"{extent.segment.name} came damaged from the archive and has to be fetched again", extent)

    def drop(self, segment: Segment) -> None:
        """Forget a segment."""
        with self._lock:
            for extent in [each for each in self._found if each.segment is segment]:
                self._forget(extent)

    def _forget(self, extent: Extent) -> None:
        del self._found[extent]
        self.bytes -= extent.stop - extent.start
