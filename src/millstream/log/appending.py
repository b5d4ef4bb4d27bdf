"""Appending to a partition: check, patch, write, remember; and beginning a new segment when the last one is full."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from millstream.log import failpoints
from millstream.log import producers as states
from millstream.log.config import TopicConfig
from millstream.log.errors import (
    BatchesTooLarge,
    InvalidRecord,
    OutOfOrderSequence,
    StorageError,
    UnknownTopic,
)
from millstream.log.files import File, replace, write_all
from millstream.log.head import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    LAST_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Head,
)
from millstream.log.index import Index
from millstream.log.producers import Producer, Sent
from millstream.log.scan import MAX_SIZE
from millstream.log.segment import Segment, file_name
from millstream.log.state import State
from millstream.log.validation import Prepared, prepare
from millstream.protocol.records import (
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    MAX_SEQUENCE,
    TRANSACTIONAL,
    Header,
    RecordsError,
    marker,
    seal,
)

MAX_UNTIDY: Final = 8
"""Closed segments whose index waits to be written by a worker; beyond it the append that rolls writes one itself."""
LEADER_EPOCH: Final = 0
"""There is one leader for ever: this machine."""

_EPOCH_OFFSET: Final = 12
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


class Appending(State):
    """A partition's end."""

    def append(self: Self, batches: bytearray | memoryview, now: int, *, internal: bool = False) -> Appended:
        """Append one or more record batches of format 2 as they came from a producer; `now` is epoch ms.

        Everything is checked before a byte is written; a LogError with Kafka's code says what is wrong. Base offset
        and leader epoch are set in `batches` itself, for LogAppendTime also timestamp and checksum. `internal` is for
        coordinators: they may write control batches, and need not number their batches.
        """
        prepared = prepare(batches, self.topic.config, now, self.name, internal=internal)
        return self.append_prepared(prepared, now, internal=internal)

    def append_prepared(self: Self, prepared: Prepared, now: int, *, internal: bool = False) -> Appended:
        """Append what `validation.prepare` has checked, perhaps on another thread; otherwise like `append`."""
        config = self.topic.config
        if prepared.config is not config:
            prepared = prepare(prepared.data, config, now, self.name, internal=internal)
        with self._lock:
            if self.failed is not None:
                raise StorageError(f"{self.name} has failed: {self.failed}")
            if self._closed:
                raise UnknownTopic(f"{self.name} is closed or has been deleted")
            appended = self._append(prepared, config, now, internal)
        if not appended.duplicate:
            if config.drop:
                self._overwrite(config, now)
            if config.durability == "commit":
                self.unflushed(self)
            elif self.listeners:
                self.announce()
        return appended

    def _overwrite(self, config: TopicConfig, now: int) -> None:
        """Let the oldest segments of a ring go; see upkeep.py."""
        raise NotImplementedError

    def announce(self: Self) -> None:
        """Wake those who wait for records; to be called on the appending thread when there is more to read."""
        for listener in tuple(self.listeners):
            listener(self)

    def _append(self, prepared: Prepared, config: TopicConfig, now: int, internal: bool) -> Appended:
        data, found = prepared.data, prepared.batches
        begin = self._end
        stamp = now if config.log_append_time else -1
        end, newest, steps, repeated = self._admit(found, now, internal)
        if repeated is not None:
            return Appended(
                repeated.first_offset, repeated.last_offset, repeated.timestamp if stamp >= 0 else -1, self._start, True
            )
        size = len(data)
        segment = self._active
        if (
            segment.size + size > config.segment_bytes
            or end - segment.base > MAX_SIZE
            or (segment.index is not None and len(segment.index.offsets) >= config.segment_index_entries)
            or (segment.size and self._is_old(segment, now if stamp >= 0 else newest, now, config.segment_ms))
        ):
            segment = self._make_room(segment, size, config, now)

        offset = begin
        for batch, head in found:
            _OFFSET.pack_into(batch, 0, offset)
            _EPOCH.pack_into(batch, _EPOCH_OFFSET, LEADER_EPOCH)
            if stamp >= 0 or head[ATTRIBUTES] & LOG_APPEND_TIME:
                _stamp(batch, head, stamp)
            offset += head[LAST_DELTA] + 1
        position = segment.size
        self._write(segment, data, position)

        interval = config.index_interval_bytes
        offset = begin
        for batch, head in found:
            last = offset + head[LAST_DELTA]
            length = len(batch)
            latest, first = (stamp, stamp) if stamp >= 0 else (head[MAX_TIMESTAMP], head[BASE_TIMESTAMP])
            segment.note(offset, last, latest, position, length, interval, first)
            position += length
            offset = last + 1
        if steps:
            self._keep_producers(steps, segment)
        self._appended_bytes += size
        self._appended_batches += len(found)
        self._end = end
        return Appended(begin, end - 1, stamp, self._start, False)

    def _admit(
        self, found: list[tuple[memoryview, Head]], now: int, internal: bool
    ) -> tuple[int, int, list[states.Step], Sent | None]:
        """The end of the log with the batches, their newest timestamp, how producers change, and what was written before."""
        offset = end = self._end
        changes: dict[int, Producer] | None = None
        steps: list[states.Step] = []
        repeated: Sent | None = None
        newest = -1
        for batch, head in found:
            if head[PRODUCER_ID] >= 0:
                if changes is None:
                    changes = {}
                duplicate = self._note_producer(batch, head, offset, now, internal, changes, steps)
                if duplicate is not None:
                    repeated = duplicate if repeated is None else repeated._replace(last_offset=duplicate.last_offset)
                    continue
            if repeated is not None:
                raise OutOfOrderSequence(f"{self.name}: new batches and repeated ones in one append")
            offset += head[LAST_DELTA] + 1
            if head[MAX_TIMESTAMP] > newest:
                newest = head[MAX_TIMESTAMP]
        if repeated is not None and offset != end:
            raise OutOfOrderSequence(f"{self.name}: new batches and repeated ones in one append")
        return offset, newest, steps, repeated

    def _write(self, segment: Segment, data: bytearray | memoryview, position: int) -> None:
        file = segment.file
        assert file is not None, "the active segment is open"
        try:
            if os.pwrite(file.fd, data, position) != len(data):
                write_all(file.fd, data, position)
        except OSError as error:
            self._undo(file, position, error)
        if failpoints.tripped:
            failpoints.reach(failpoints.APPEND_WRITTEN)

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
        producer_id, epoch = head[PRODUCER_ID], head[PRODUCER_EPOCH]
        state = changes.get(producer_id) or self._producers.get(producer_id)
        if head[ATTRIBUTES] & CONTROL:
            try:
                said = marker(batch)
            except RecordsError as error:
                raise InvalidRecord(f"{self.name}: an unreadable control batch: {error}") from None
            if said is not None:
                after = states.ended(state, producer_id, epoch, said, head[MAX_TIMESTAMP], now)
                changes[producer_id] = after
                steps.append((producer_id, after, offset, said.commit))
            return None
        first = head[BASE_SEQUENCE]
        last = (first + head[LAST_DELTA]) & MAX_SEQUENCE if first >= 0 else first
        if not internal:
            duplicate = states.duplicate(state, epoch, first, last)
            if duplicate is not None:
                return duplicate
        transactional = bool(head[ATTRIBUTES] & TRANSACTIONAL)
        latest = now if self.topic.config.log_append_time else head[MAX_TIMESTAMP]
        sent = Sent(first, last, offset, offset + head[LAST_DELTA], latest)
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
        self._cursors = {}
        self._folder_dirty = True
        self._unsynced.append(old)
        self._waiting_snapshots[base] = self._producers.copy()
        failpoints.reach(failpoints.ROLL_DONE)
        if len(self._waiting_snapshots) > MAX_UNTIDY:
            self._tidy_locked()
        return new

    def _save_snapshot(self, offset: int, entries: Mapping[int, Producer], *, sync: bool = False) -> None:
        replace(
            self.folder / file_name(offset, "snapshot"),
            states.dump(entries, offset),
            point=failpoints.SNAPSHOT_WRITTEN,
            sync=sync,
        )
        self._snapshots.add(offset)

    def _tidy_locked(self) -> None:
        for offset, entries in self._waiting_snapshots.items():
            self._save_snapshot(offset, entries)
        self._waiting_snapshots = {}
        for segment in self._table[1][:-1]:
            if segment.index is not None and not segment.index_saved:
                segment.save_index(segment.index)
                self._opened.release(segment)


def _stamp(batch: memoryview, head: Head, stamp: int) -> None:
    # The type of the timestamps and the newest one are the topic's business, so the checksum is made again.
    fields = Header._make(HEADER.unpack_from(batch))
    if stamp >= 0:
        fields = fields._replace(attributes=head[ATTRIBUTES] | LOG_APPEND_TIME, max_timestamp=stamp)
    else:
        fields = fields._replace(attributes=head[ATTRIBUTES] & ~LOG_APPEND_TIME)
    HEADER.pack_into(batch, 0, *fields)
    seal(batch)
