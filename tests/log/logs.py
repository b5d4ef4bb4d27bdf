"""What the tests of the log share: batches, a clock, and a reader that does what a consumer does."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from millstream.log import Log, Partition, Read, archive
from millstream.log.scan import Source
from millstream.protocol import records
from millstream.protocol.records import Header, Record

NOW = 1_760_000_000_000
SMALL = {"internal.segment.bytes": "600", "index.interval.bytes": "100", "retention.ms": "-1"}


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now / 1000


def open_log(folder: Path, **defaults: str) -> Log:
    return Log(folder, {name.replace("_", "."): value for name, value in defaults.items()}, clock=Clock())


def crash(log: Log) -> None:
    """Let go of the folder as a killed process does: nothing is synced, nothing is written."""
    os.close(log._lock_fd)
    log._lock_fd = -1


def batch(*values: bytes | None, key: bytes | None = b"key", timestamp: int = NOW, **options: int) -> bytearray:
    return records.build([(key, value) for value in values or (b"value",)], timestamp, **options)


def keyed(*pairs: tuple[bytes, bytes | None], timestamp: int = NOW, **options: int) -> bytearray:
    return records.build(list(pairs), timestamp, **options)


def fill(partition: Partition, count: int, *, size: int = 50, timestamp: int = NOW) -> list[bytes]:
    """Append `count` batches of one record; their values."""
    values = [b"%06d" % (partition.end_offset + i) + bytes(size - 6) for i in range(count)]
    for value in values:
        partition.append(batch(value, timestamp=timestamp), NOW)
    return values


def content(found: Read) -> bytes:
    """The bytes of a read, through its slices' descriptors."""
    data = b"".join(os.pread(piece.file, piece.size, piece.position) for piece in found.slices)
    for piece in found.slices:
        piece.release()
    return data


def batches(data: bytes) -> Iterable[tuple[Header, bytes]]:
    for position, header in records.headers(data):
        yield header, data[position : position + header.size]


def consume(
    partition: Partition, offset: int | None = None, *, max_bytes: int = 1000, committed: bool = False
) -> list[Record]:
    """All records from `offset` (the start) on, as a consumer of Kafka's isolation level sees them."""
    offset = partition.start_offset if offset is None else offset
    found: list[Record] = []
    while True:
        read = partition.read(offset, max_bytes, committed=committed)
        skipped: set[int] = set()
        waiting = sorted(((first, producer) for producer, first in read.aborted), reverse=True)
        for header, data in batches(content(read)):
            assert records.valid(data)
            while waiting and waiting[-1][0] <= header.last_offset:
                skipped.add(waiting.pop()[1])
            if header.control:
                said = records.marker(data)
                if said is not None and not said.commit:
                    skipped.discard(header.producer_id)
                continue
            if header.transactional and header.producer_id in skipped:
                continue
            found += [record for record in records.records(data) if record.offset >= offset]
        if read.next_offset == offset:
            return found
        assert read.next_offset > offset
        offset = read.next_offset


def values(found: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in found]


def state(found: Iterable[Record]) -> dict[bytes, bytes]:
    """What a table of the newest values holds after these records."""
    table: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def maintain(log: Log, now: int = NOW, steps: int = 1000) -> int:
    """Run maintenance until nothing is due; the number of steps."""
    for done in range(steps):
        if not log.maintain(now):
            return done
    raise AssertionError(f"maintenance still finds something to do after {steps} steps")


class Spoiling:
    """In the place of `archive.source`: what is at `position` in the first `times` transfers of each segment is changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, position: int, times: int) -> None:
        self._position, self._times, self._real = position, times, archive.source
        self.transfers: dict[int, int] = {}
        """How often the segment of a base offset was fetched."""
        monkeypatch.setattr(archive, "source", self)

    def __call__(self, found: archive.Entry) -> Source:
        read = self._real(found)
        seen = self.transfers[found.base] = self.transfers.get(found.base, 0) + 1

        def spoiled(buffer: memoryview, position: int) -> int:
            count = read(buffer, position)
            if seen <= self._times and position <= self._position < position + count:
                buffer[self._position - position] ^= 1
            return count

        return spoiled
