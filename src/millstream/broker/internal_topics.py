"""The coordinators' durable memory: internal topics that hold Kafka's own record schemas.

A key starts with the record's type (int16) and a value with its version (int16), as in Kafka, whose tools read them. A
write is in the operating system's hands before the coordinator answers, so that it survives the broker's death; replay
at start reads the whole topic in order, transactions included.

What survives a power cut as well (`millstream.durability`): these topics take the broker's default like any other, and
`commit` of their own means that nothing is answered from them before it is synced. Otherwise a coordinator syncs what is
said about topics that are `commit` themselves, and nothing else.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from millstream.protocol import records
from millstream.protocol.wire import Message

if TYPE_CHECKING:
    from millstream.log import Log, Partition

_log = logging.getLogger(__name__)
PREFIX = struct.Struct(">h")
# How much of an internal topic is read at once at start.
REPLAY_BYTES = 4 * 1024 * 1024
# A group's metadata holds every member's assignment: a large group needs more than an ordinary message may have.
MAX_RECORD_BYTES = 16 * 1024 * 1024

COMPACTED = {"cleanup.policy": "compact"}
# Whatever the broker's defaults: nothing goes by age or size.
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

Write = tuple[Message, Message | None, int]  # key, value (None: a tombstone), the value's version


class Replayed(NamedTuple):
    """A record of an internal topic, or the end of a transaction on it."""

    type: int
    key: memoryview
    version: int
    value: memoryview | None
    producer_id: int  # -1: not in a transaction
    ended: bool | None = None  # for the end of a transaction: whether it committed
    partition: int = 0
    at: int = 0  # epoch milliseconds, when it was written
    offset: int = -1


def pack(prefix: int, message: Message, version: int) -> bytes:
    """A key or value with its prefix."""
    out = bytearray(PREFIX.pack(prefix))
    message.encode_into(out, version)
    return bytes(out)


def java_hash(text: str) -> int:
    """String.hashCode: Kafka finds a group's partition with it, and so do tools."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


class InternalTopic:
    """One internal topic; created at the first write. Not `compacted`: who writes it deletes what is not needed any more."""

    def __init__(self, log: Log, name: str, partitions: int, segment_bytes: int, *, compacted: bool = True) -> None:
        self._log = log
        self.name = name
        self._count = partitions
        self._config = {
            **(COMPACTED if compacted else KEPT),
            "segment.bytes": str(segment_bytes),
            "max.message.bytes": str(MAX_RECORD_BYTES),
        }

    @property
    def durable(self) -> bool:
        """Whether the topic's own durability is `commit`: then everything in it is synced before it is answered."""
        return self._log.is_commit(self.name)

    def must_survive(self, topics: Iterable[str]) -> bool:
        """Whether a power cut must not undo what is stored here about these topics."""
        return self.durable or any(map(self._log.is_commit, topics))

    def unsynced(self) -> list[Partition]:
        """The partitions that hold what is not synced."""
        topic = self._log.topics.get(self.name)
        partitions = topic.partitions if topic is not None else []
        return [partition for partition in partitions if partition.flushed_offset < partition.end_offset]

    def partition(self, key: str) -> Partition:
        """The partition of a group or transactional id."""
        topic = self._log.topics.get(self.name)
        if topic is None:
            topic = self._log.create(self.name, self._count, self._config)
        if len(topic.partitions) == 1:
            return topic.partitions[0]
        return topic.partitions[(java_hash(key) & 0x7FFFFFFF) % len(topic.partitions)]

    def write(self, key: str, writes: Iterable[Write], now: int, producer: tuple[int, int] | None = None) -> int:
        """Append records that belong to `key`; with `producer` (id, epoch) inside its transaction. Raises LogError.

        Returns the offset behind them: they survive a power cut once the partition is synced up to it.
        """
        messages = [
            (pack(k.API_KEY, k, 0), None if value is None else pack(version, value, version))
            for k, value, version in writes
        ]
        if producer is None:
            batch = records.build(messages, now)
        else:
            batch = records.build(
                messages, now, producer_id=producer[0], producer_epoch=producer[1], transactional=True
            )
        return self.partition(key).append(batch, now, internal=True).last_offset + 1

    def replay(self) -> Iterator[Replayed]:
        """Every record, in order of each partition."""
        topic = self._log.topics.get(self.name)
        for partition in topic.partitions if topic is not None else ():
            offset = partition.start_offset
            while offset < partition.end_offset:
                read = partition.read(offset, REPLAY_BYTES)
                data = b"".join(os.pread(piece.file, piece.size, piece.position) for piece in read.slices)
                for piece in read.slices:
                    piece.release()
                if not data:
                    break
                view = memoryview(data)
                for position, found in records.headers(data):
                    batch = view[position : position + found.size]
                    producer = found.producer_id if found.transactional else -1
                    if found.control:
                        marker = records.marker(batch)
                        if marker is not None:
                            yield Replayed(
                                -1, memoryview(b""), -1, None, found.producer_id, marker.commit, partition.index
                            )
                        continue
                    for record in records.records(batch):
                        if record.key is None or len(record.key) < 2:
                            continue
                        value = memoryview(record.value) if record.value is not None else None
                        yield Replayed(
                            PREFIX.unpack_from(record.key)[0],
                            memoryview(record.key)[2:],
                            PREFIX.unpack_from(value)[0] if value is not None else -1,
                            value[2:] if value is not None else None,
                            producer,
                            partition=partition.index,
                            at=record.timestamp,
                            offset=record.offset,
                        )
                    offset = found.last_offset + 1
                if read.next_offset <= offset and not data:
                    break
                offset = max(offset, read.next_offset)
