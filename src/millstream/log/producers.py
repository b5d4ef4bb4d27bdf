"""What a partition remembers of each idempotent or transactional producer, and what it refuses from them.

The rules are those of Kafka's ProducerStateManager, ProducerAppendInfo and ProducerStateEntry (KIP-98, KIP-360):
a batch that repeats one of the last five is a duplicate; any other must follow the last one; an older epoch is
fenced; a marker ends the transaction. `sent` and `ended` are pure: a producer's state in, its next state out, so that
an append can be refused as a whole before anything is written.

Snapshot file, version 1, big-endian: magic "MSPS" | version u16 | offset i64 | producers u32 | crc32c u32 of the rest,
then per producer: id i64 | epoch i16 | coordinator epoch i32 | last timestamp i64 | seen i64 | start of its
transaction i64 | batches u8, and per batch: first sequence i32 | last sequence i32 | first offset i64 |
last offset i64 | timestamp i64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.log.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from millstream.log.index import Aborted
from millstream.protocol.records import MAX_SEQUENCE, Marker

REMEMBERED: Final = 5
"""Batches remembered per producer, as in Kafka: clients have at most this many requests in flight."""
MAX_PRODUCERS: Final = 100_000
"""Producers remembered per partition. At the bound the tenth that was silent for longest is forgotten early, as if
producer.id.expiration.ms had passed: stops clients that ask for a new id each time from using up the memory."""

_MAGIC: Final = b"MSPS"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sHqII")
_ENTRY: Final = struct.Struct(">qhiqqqB")
_BATCH: Final = struct.Struct(">iiqqq")


class Sent(NamedTuple):
    """A batch that a producer has written."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Producer(NamedTuple):
    """State of one producer; `seen` is the log's clock at its last write, `transaction_start` -1 outside of one."""

    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    seen: int = 0
    transaction_start: int = -1
    batches: tuple[Sent, ...] = ()

    @property
    def last_sequence(self) -> int:
        """Sequence number of its last record, -1 when unknown."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """Offset of its last record, -1 when unknown."""
        return self.batches[-1].last_offset if self.batches else -1


Step = tuple[int, Producer, int, bool | None]
"""A change that an append makes: producer id, its next state, the batch's offset, and for a marker whether it commits."""

UNKNOWN: Final = Producer()
REFUSALS: Final = (InvalidProducerEpoch, OutOfOrderSequence, InvalidTransactionState)
"""What `sent` raises."""


def duplicate(state: Producer, epoch: int, first: int, last: int) -> Sent | None:
    """The batch with exactly these sequence numbers among the remembered ones of the same epoch."""
    if epoch == state.epoch:
        for batch in state.batches:
            if batch[0] == first and batch[1] == last:
                return batch
    return None


def sent(
    state: Producer, producer_id: int, epoch: int, batch: Sent, seen: int, *, transactional: bool, client: bool
) -> Producer:
    """The state after a batch of records.

    Raises InvalidProducerEpoch, OutOfOrderSequence (only for a client's batch) or InvalidTransactionState.
    """
    known = state.epoch
    if epoch < known:
        raise _fenced(producer_id, epoch, known)
    first = batch[0]
    if client:
        if epoch != known:
            # A new epoch begins with 0; when nothing is known of the producer any number will do (KIP-360).
            if first != 0 and known != -1:
                raise OutOfOrderSequence(
                    f"producer {producer_id} begins epoch {epoch} with sequence {first}: expected 0 (last epoch {known})"
                )
        else:
            last = state.batches[-1][1] if state.batches else -1
            if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
                raise OutOfOrderSequence(
                    f"producer {producer_id} (epoch {epoch}) sends sequence {first} after {last}: expected {last + 1}"
                )
    start = state.transaction_start
    if start < 0:
        if transactional:
            start = batch[2]
    elif not transactional:
        raise InvalidTransactionState(
            f"producer {producer_id} has a transaction open since offset {start} and writes outside of it"
        )
    batches = state.batches if epoch == known else ()
    return Producer(epoch, state.coordinator_epoch, batch[4], seen, start, (*batches[1 - REMEMBERED :], batch))


def ended(state: Producer, producer_id: int, epoch: int, marker: Marker, timestamp: int, seen: int) -> Producer:
    """The state after a transaction marker; InvalidProducerEpoch or TransactionCoordinatorFenced."""
    if epoch < state.epoch:
        raise _fenced(producer_id, epoch, state.epoch)
    if marker.coordinator_epoch < state.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"a coordinator of epoch {marker.coordinator_epoch} ends a transaction of producer {producer_id}: "
            f"one of epoch {state.coordinator_epoch} has taken over"
        )
    batches = state.batches if epoch == state.epoch else ()
    return Producer(epoch, marker.coordinator_epoch, timestamp, seen, -1, batches)


def _fenced(producer_id: int, epoch: int, known: int) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"producer {producer_id} writes with epoch {epoch}, a newer one has written with epoch {known}"
    )


class Producers:
    """All producers of a partition, and its open transactions by their first offset."""

    def __init__(self) -> None:
        self._entries: dict[int, Producer] = {}
        # First offsets rise with time, so the first key is the oldest open transaction.
        self._open: dict[int, int] = {}
        self.view: Mapping[int, Producer] = MappingProxyType(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> Producer:
        """What is known of a producer."""
        return self._entries.get(producer_id, UNKNOWN)

    @property
    def first_unstable(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open), None)

    def put(self, producer_id: int, state: Producer) -> None:
        """Store a producer's next state."""
        before = self._entries.get(producer_id, UNKNOWN).transaction_start
        if state.transaction_start != before:
            if before >= 0:
                self._open.pop(before, None)
            if state.transaction_start >= 0:
                self._open[state.transaction_start] = producer_id
        self._entries[producer_id] = state
        if len(self._entries) > MAX_PRODUCERS:
            self._shrink()

    def end(self, producer_id: int, state: Producer, commit: bool, offset: int) -> Aborted | None:
        """Store the state after the marker at `offset`; what the transaction index is to say when it was aborted."""
        start = self.get(producer_id).transaction_start
        self.put(producer_id, state)
        if start < 0 or commit:
            return None
        unstable = self.first_unstable
        return Aborted(producer_id, start, offset, offset + 1 if unstable is None else unstable)

    def expired(self, now: int, expiration_ms: int) -> list[int]:
        """Producers without an open transaction that have been silent for that long."""
        return [
            producer_id
            for producer_id, state in list(self._entries.items())
            if state.transaction_start < 0 and now - state.seen >= expiration_ms
        ]

    def forget(self, producer_ids: Iterable[int]) -> None:
        """Drop producers."""
        for producer_id in producer_ids:
            self._entries.pop(producer_id, None)

    def _shrink(self) -> None:
        idle = sorted((s.seen, i) for i, s in self._entries.items() if s.transaction_start < 0)
        self.forget(producer_id for _, producer_id in idle[: MAX_PRODUCERS // 10])

    def copy(self) -> dict[int, Producer]:
        """All states as of now: cheap, because states never change."""
        return dict(self._entries)

    def fill(self, entries: Mapping[int, Producer]) -> None:
        """Begin with the states of a snapshot."""
        self._entries.clear()
        self._entries.update(entries)
        self._open.clear()
        self._open.update(sorted((s.transaction_start, i) for i, s in entries.items() if s.transaction_start >= 0))


def dump(entries: Mapping[int, Producer], offset: int) -> bytes:
    """The content of a snapshot file that holds the states as of `offset`."""
    body = bytearray()
    for producer_id, state in entries.items():
        body += _ENTRY.pack(
            producer_id,
            state.epoch,
            state.coordinator_epoch,
            state.last_timestamp,
            state.seen,
            state.transaction_start,
            len(state.batches),
        )
        for batch in state.batches:
            body += _BATCH.pack(*batch)
    crc = crc32c(body, crc32c(_HEADER.pack(_MAGIC, _VERSION, offset, len(entries), 0)))
    return _HEADER.pack(_MAGIC, _VERSION, offset, len(entries), crc) + bytes(body)


def load(data: bytes) -> tuple[int, dict[int, Producer]] | None:
    """Offset and states of a snapshot file; None when it is damaged or of another version."""
    if len(data) < _HEADER.size:
        return None
    magic, version, offset, count, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        return None
    if crc32c(memoryview(data)[_HEADER.size :], crc32c(_HEADER.pack(magic, version, offset, count, 0))) != crc:
        return None
    entries: dict[int, Producer] = {}
    position = _HEADER.size
    for _ in range(count):
        producer_id, epoch, coordinator, last, seen, start, batches = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        found = tuple(Sent(*_BATCH.unpack_from(data, position + i * _BATCH.size)) for i in range(batches))
        position += batches * _BATCH.size
        entries[producer_id] = Producer(epoch, coordinator, last, seen, start, found)
    return offset, entries
