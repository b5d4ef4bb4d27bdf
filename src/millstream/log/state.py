"""What a partition is made of: its segments, offsets, producers and locks.

Threads. Appends and reads come from one thread (the broker's event loop). Everything in `upkeep.py` blocks and comes
from worker threads. `_lock` guards what both change and is held for memory operations only (and for the one write of
an append); `_work` lets one worker at a time change the set of segments; `_flushing` lets one sync at a time.
Order: `_archiving`, `_work`, `_flushing`, `_saving`, `_lock`. Readers take no lock: the table of segments is replaced, never
changed, and a File stays open while somebody holds it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from millstream.log import archive
from millstream.log import producers as states
from millstream.log.archive import Entry
from millstream.log.fetched import NotHere
from millstream.log.files import File, read_into
from millstream.log.index import Index
from millstream.log.opened import OpenSegments
from millstream.log.producers import Producer
from millstream.log.recovery import index_of, read_snapshot, recover, replay
from millstream.log.segment import Segment
from millstream.log.traits import Traits


def _ignore(_: object) -> None:
    """The log's user flushes by itself."""


class State:
    """The present state of a partition, which its folder's recovery begins.

    `listeners` are called when there is more to read, `unflushed` after each append that only a flush makes readable.
    """

    # They get the whole partition, of which this class is a part: hence `self: Self` where they are called.
    listeners: set[Callable[[Self], None]]
    unflushed: Callable[[Self], None]

    def __init__(self, topic: Traits, index: int, folder: Path, opened: OpenSegments, *, clean: bool, now: int) -> None:
        url = topic.config.archive
        archived = archive.place(url, topic.name, topic.id, index) if url else ""
        found = recover(folder, clean=clean, now=now, archived=archived)
        self.topic = topic
        self.index = index
        self.folder = folder
        self.recovered = found.notes
        self.listeners = set()
        self.unflushed = _ignore
        self.failed: str | None = None
        self._opened = opened
        self._lock = threading.Lock()
        self._work = threading.Lock()
        self._flushing = threading.Lock()
        self._saving = threading.Lock()
        self._archiving = threading.Lock()
        self._producers = found.producers
        self._snapshots = found.snapshots
        self._table: tuple[list[int], list[Segment]] = ([s.base for s in found.segments], found.segments)
        self._active = found.segments[-1]
        self._end = self._active.end_offset
        self._start = found.checkpoint.start
        self._flushed = found.checkpoint.flushed
        self._shown = 0
        self.dropped = (found.checkpoint.dropped, found.checkpoint.dropped_bytes)
        self._cleaned = found.checkpoint.cleaned
        self._saved = found.checkpoint
        self._saved_bytes = 0
        self._appended_bytes = 0
        self._saved_batches = 0
        self._appended_batches = 0
        self._cursors: dict[int, tuple[Segment, int]] = {}
        self._passed: dict[int, bool] = {}
        self._ahead: NotHere | None = None
        self._waiting_snapshots: dict[int, dict[int, Producer]] = {}
        self._folder_dirty = True
        self._last_flush_ms = now
        self._last_expiry_ms = now
        self._closed = False
        self._checkpoint_next = False
        self.stopping = False
        self.uncleanable: str | None = None
        self._unsynced = [s for s in found.segments[:-1] if s.end_offset > self._flushed and s.local]
        self._remote = found.remote
        self._doomed: list[Entry] = []
        self._archive_after = 0
        for segment in found.segments:
            segment.rebuild = self._rebuild

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
        """Offset that the next record will get."""
        return self._end

    @property
    def high_watermark(self) -> int:
        """Offset before which records may be read: with durability `commit` what has been synced, else the end.

        It never goes back, also not when the durability changes while records wait for their sync.
        """
        if self.topic.config.durability != "commit":
            return self._end
        return self._flushed if self._flushed > self._shown else self._shown

    def show(self) -> None:
        """Note that everything so far may have been read, because the durability was not `commit` until now."""
        self._shown = self._end

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
        """Offset before which no transaction is open; never behind the high watermark."""
        high = self.high_watermark
        unstable = self._producers.first_unstable
        if unstable is None or unstable >= high:
            return high
        # Retention may have taken the beginning of a transaction that hangs.
        return unstable if unstable > self._start else self._start

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp of a record that is still there, epoch ms; -1 if there is none."""
        return max(s.max_timestamp for s in self._table[1])

    @property
    def size(self) -> int:
        """Bytes of all segments' files here, without indexes."""
        return sum(s.size for s in self._table[1] if s.local)

    @property
    def segments(self) -> list[Segment]:
        """The segments in order, the last one active. Not to be changed."""
        return self._table[1]

    @property
    def producers(self) -> Mapping[int, Producer]:
        """State of each idempotent producer, by its id."""
        return self._producers.view

    @property
    def opened(self) -> OpenSegments:
        """The files that the log keeps open."""
        return self._opened

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

    def _rebuild(self, segment: Segment) -> Index:
        # The index of a closed segment turned out to be damaged while running: compute it again.
        file = segment.file or File(segment.path, os.O_RDONLY)
        again = index_of(partial(read_into, file.fd), segment)
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
                if begin < earlier.end_offset and earlier.base < segment.base and earlier.local:
                    replay(File(earlier.path, os.O_RDONLY), earlier, begin, state, None, 0)
            replay(file, segment, max(begin, segment.base), state, again, 0)
        return again
