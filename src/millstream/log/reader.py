"""Reading a partition: from an offset or a time, across segments, up to the last stable offset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from millstream.log import reading
from millstream.log.errors import (
    CorruptMessage,
    LogError,
    OffsetOutOfRange,
    StorageError,
    UnknownTopic,
)
from millstream.log.fetched import Extent, NotHere, extent_at
from millstream.log.files import File
from millstream.log.index import Index
from millstream.log.reading import Read, Slice
from millstream.log.segment import Segment
from millstream.log.state import State

MAX_SLICES: Final = 16
"""Slices of one read: bounds the work of a read over many small segments."""
MAX_CURSORS: Final = 64
"""Readers at the end whose position is remembered."""


class Reader(State):
    """A partition's content."""

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> Read:
        """Whole batches from the one that holds `offset` on: about `max_bytes`, at least one however large.

        With `committed` only what is before the last stable offset, and the aborted transactions to skip in it.
        Nothing at or behind the high watermark is read; `end_offset` of the answer is the high watermark.
        OffsetOutOfRange before the start or behind the end; CorruptMessage when the batch is damaged on disk; NotHere
        when it is in the archive, or came damaged from there: `fetch` it, then read again.
        """
        if self._closed:
            raise UnknownTopic(f"{self.name} is closed or has been deleted")
        start, end = self._start, self._end
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{self.name} holds offsets {start} to {end - 1}, {offset} was asked for")
        # Once, because a sync on another thread may move it while this runs.
        end = self.high_watermark
        stable = min(end, self.last_stable_offset)
        limit = stable if committed else end
        if self.failed is not None:
            limit = min(limit, self._flushed)
            if offset > limit:
                raise StorageError(f"{self.name} has failed: {self.failed}")
        if offset >= limit:
            if offset == self._end:
                self._remember(offset, self._active, self._active.size)
            return Read([], start, end, stable, [], offset)
        slices: list[Slice] = []
        self._ahead = None
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
                    if not segment.gaps:
                        # Continuing with the next segment would leave records out without a word.
                        raise CorruptMessage(f"{segment.name}: offset {following} is not where it should be")
                else:
                    room -= piece.stop - piece.position
                    following = piece.next_offset
                    if following < segment.end_offset:
                        break
            following = max(following, segments[place + 1].base) if place + 1 < len(segments) else following
            place += 1
        following = min(following, limit)
        aborted = self._aborted(segments[first:], offset, following) if committed else []
        return Read(slices, start, end, stable, aborted, following, self._ahead)

    def _piece(self, segment: Segment, offset: int, limit: int, room: int, slices: list[Slice]) -> reading.Piece | None:
        if not segment.local:
            return self._archived_piece(segment, offset, limit, room, slices)
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
                piece = reading.verified(segment, file, index, position, offset, limit, room, one=one)
            else:
                piece = None
        except OSError as error:
            raise StorageError(f"{segment.name} cannot be read: {error.strerror}") from error
        if piece is not None:
            slices.append(Slice(file, piece.position, piece.stop - piece.position))
            self._remember(piece.next_offset, segment, piece.stop)
        return piece

    def _archived_piece(
        self, segment: Segment, offset: int, limit: int, room: int, slices: list[Slice]
    ) -> reading.Piece | None:
        # Up to the end of what is fetched at once: the next read continues behind it.
        index = self._opened.index(segment)
        noted, position = index.at_offset(offset - segment.base)
        while position < segment.size:
            extent = extent_at(segment, index, position)
            file = self._opened.cache.get(extent)
            try:
                if segment.gaps:
                    reading.check_offsets(segment, file, index, position)
                position = reading.locate_from(segment, file, position, segment.base + noted, extent.stop, offset)
                if position < extent.stop:
                    piece = reading.verified(
                        segment, file, index, position, offset, limit, room, one=not slices, stop=extent.stop
                    )
                    if piece is not None:
                        slices.append(Slice(file, piece.position, piece.stop - piece.position))
                        self._look_ahead(segment, index, extent, offset, piece)
                    return piece
                if not segment.gaps:
                    raise CorruptMessage(f"{segment.name}: offset {offset} is not where it should be", extent.start)
            except CorruptMessage:
                self._opened.cache.doubt(extent)
                raise
        return None

    def _look_ahead(self, segment: Segment, index: Index, extent: Extent, offset: int, piece: reading.Piece) -> None:
        # Who continues where an extent ended reads from start to end: what is behind this one is fetched beside it.
        if self._passed.pop(offset, False):
            try:
                self._ahead = self._behind(segment, index, extent.stop)
            except NotHere as missing:
                self._ahead = missing
        if piece.stop == extent.stop:
            if len(self._passed) >= MAX_CURSORS:
                del self._passed[next(iter(self._passed))]
            self._passed[piece.next_offset] = True

    def _behind(self, segment: Segment, index: Index, position: int) -> NotHere | None:
        # What is to be fetched from `position` on, if it is in the archive and not here.
        if position >= segment.size:
            bases, segments = self._table
            segment, position = segments[bisect_right(bases, segment.base)], 0
            if segment.local:
                return None
            index = self._opened.index(segment)
        extent = extent_at(segment, index, position)
        return NotHere(f"{segment.name} is read ahead", extent) if self._opened.cache.lacks(extent) else None

    def _windows(self, segment: Segment, index: Index, position: int) -> Iterator[tuple[File, int, int]]:
        # The segment from `position` on, one file after the other; NotHere at the first that has to be fetched.
        if segment.local:
            yield self._opened.get(segment)[0], position, segment.size
            return
        while position < segment.size:
            extent = extent_at(segment, index, position)
            yield self._opened.cache.get(extent), position, extent.stop
            position = extent.stop

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        # Of the active segment only: a cursor must not hold a file that retention or compaction wants to be gone.
        if segment is not self._active:
            return
        cursors = self._cursors
        if len(cursors) >= MAX_CURSORS and offset not in cursors:
            del cursors[next(iter(cursors))]
        cursors[offset] = segment, position

    def bytes_from(self, offset: int) -> int:
        """About how many bytes lie between `offset` and the end: exact to an index interval in the newest segment."""
        bases, segments = self._table
        place = max(0, bisect_right(bases, offset) - 1)
        segment = segments[place]
        index = segment.index
        if offset >= segment.end_offset:
            inside = 0
        elif offset <= segment.base:
            inside = segment.size
        elif index is not None and segment is self._active:
            inside = segment.size - index.at_offset(offset - segment.base)[1]
        else:
            # Without the index, which would have to be read from disk: as if all records had the same size.
            inside = segment.size * (segment.end_offset - offset) // (segment.end_offset - segment.base)
        return inside + sum(later.size for later in segments[place + 1 :])

    def _aborted(self, segments: list[Segment], offset: int, upper: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for segment in segments:
            if segment.aborted:
                for entry in self._opened.index(segment).aborted:
                    if entry.last_offset >= offset and entry.first_offset < upper:
                        found.append((entry.producer_id, entry.first_offset))
                    if entry.last_stable_offset >= upper:
                        return found
        return found

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record not older than `timestamp` (epoch ms); None if all are older."""
        for segment in self._table[1]:
            if segment.max_timestamp >= timestamp and segment.end_offset > self._start:
                found = self._at_time(segment, timestamp)
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None if there are no timestamps."""
        there = [s for s in self._table[1] if s.end_offset > self._start and s.max_timestamp >= 0]
        best: tuple[int, int] | None = None
        for segment in sorted(there, key=lambda s: -s.max_timestamp):
            if best is not None and segment.max_timestamp <= best[1]:
                break
            found = self._at_time(segment, segment.max_timestamp)
            if found is None:  # The newest one has been deleted: the log begins behind it.
                newest = self._newest_from_start(segment)
                found = self._at_time(segment, newest) if newest >= 0 else None
            if found is not None and (best is None or found[1] > best[1]):
                best = found
        return best

    def _at_time(self, segment: Segment, timestamp: int) -> tuple[int, int] | None:
        index = self._opened.index(segment)
        relative, position = index.at_time(timestamp)
        windows = self._windows(segment, index, position)
        try:
            return reading.at_time(segment, index, windows, segment.base + relative, timestamp, self._start)
        except CorruptMessage as error:
            self._doubt(segment, index, error)
            raise
        except OSError as error:
            raise StorageError(f"{segment.name} cannot be read: {error.strerror}") from error

    def _newest_from_start(self, segment: Segment) -> int:
        index = self._opened.index(segment)
        _, position = index.at_offset(self._start - segment.base)
        try:
            return reading.newest(segment, self._windows(segment, index, position), self._start)
        except CorruptMessage as error:
            self._doubt(segment, index, error)
            raise

    def _doubt(self, segment: Segment, index: Index, error: CorruptMessage) -> None:
        # What is in the archive may be whole: it is fetched again, once, before the error goes out.
        if not segment.local:
            self._opened.cache.doubt(extent_at(segment, index, error.position))
