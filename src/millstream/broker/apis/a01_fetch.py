"""Fetch (key 1), versions 4-18: read record batches.

Whole batches only, sent from the log's files without passing through memory; the first partition with data gets at
least one batch however large, so that readers always advance. What is in an archive is fetched on a worker thread,
and the request waits for it as it does for appends. When fewer than min bytes are there, the request waits
for appends (their listeners wake it) until max wait. Incremental fetch sessions (KIP-227) live in
`broker/fetch_sessions.py`. Isolation level read_committed ends at the last stable offset and lists aborted transactions.
Topics by name up to version 12, by id from 13 on.
Gaps: there are no followers, so a replica id is ignored, preferred replica and diverging epochs are never set (the
leader epoch is always 0: one broker).

Version notes: 5 tells the start of the log, 6 knows KAFKA_STORAGE_ERROR, 7 has fetch sessions (KIP-227), 8 throttles
after the answer (KIP-219), 9 checks the leader epoch (KIP-320), 10 may bring zstd (KIP-110), 11 names a rack (KIP-392),
12 is flexible and brings the last fetched epoch (KIP-595), 13 names topics by id (KIP-516), 14 knows
OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405), 15 to 18 are about followers (KIP-903, 853, 1166) and new leaders (16,
KIP-951).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.quotas import FETCH
from millstream.log import LogError, NotHere, OffsetOutOfRange
from millstream.protocol import errors
from millstream.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.fetch_sessions import Session
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition, Slice, Topic


class Records:
    """Batches in files, as the value of a `records` field: only its length goes through memory."""

    __slots__ = ("size", "slices")

    def __init__(self, slices: list[Slice]) -> None:
        self.slices = slices
        self.size = sum(piece.size for piece in slices)

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        """The batches are not sent after all."""
        for piece in self.slices:
            piece.release()


# What is to be read: topic (None: unknown), its name and id as the client gave them, the partitions.
Plan = list[tuple["Topic | None", str, bytes, list[FetchPartition]]]


def handle(
    broker: Broker, connection: Connection, request: FetchRequest, version: int
) -> FetchResponse | asyncio.Future[FetchResponse]:
    """Read now, or wait for more."""
    session: Session | None = None
    if version >= 7:
        opened = broker.fetch_sessions.open(request, version)
        if isinstance(opened, FetchResponse):
            return opened
        session = opened
    plan: Plan = []
    by_id = version >= 13
    if session is not None:
        for (topic_id, name), parts in session.partitions.items():
            topic = broker.topic_by_id(topic_id) if by_id else broker.log.topics.get(name)
            plan.append((topic, name, topic_id, list(parts.values())))
    else:
        for wanted in request.topics:
            topic = broker.topic_by_id(wanted.topic_id) if by_id else broker.log.topics.get(wanted.topic)
            plan.append((topic, wanted.topic, wanted.topic_id, wanted.partitions))
    attempt = Attempt(broker, connection, request, plan, session, by_id)
    attempt.read()
    if attempt.size >= request.min_bytes or request.max_wait_ms <= 0 or attempt.failed or not attempt.partitions:
        return attempt.response()
    return attempt.wait()


class Attempt:
    """A fetch that reads, and waits for appends when there is too little."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        request: FetchRequest,
        plan: Plan,
        session: Session | None,
        by_id: bool,
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.request = request
        self.plan = plan
        self.session = session
        self.by_id = by_id
        self.size = 0
        self.failed = False
        self.partitions: list[Partition] = []
        self._topics: list[FetchableTopicResponse] = []
        self._scheduled = False
        self._future: asyncio.Future[FetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []

    def read(self) -> None:
        """Read every partition of the plan, within the request's limits."""
        committed = self.request.isolation_level == 1
        left = min(self.request.max_bytes, limits.MAX_FETCH_BYTES)
        if self.broker.quotas.active:
            left = int(min(left, self._burst()))
        self.size = 0
        self._topics = []
        self.partitions = []
        for topic, name, topic_id, wanted in self.plan:
            results = []
            known = topic.name if topic is not None else name
            denied = bool(known) and not self.connection.may(Operation.READ, Resource.TOPIC, known)
            for want in wanted:
                if denied:
                    code = errors.TOPIC_AUTHORIZATION_FAILED
                    results.append(PartitionData(want.partition, code, -1))
                    self.failed = True
                elif topic is None:
                    code = errors.UNKNOWN_TOPIC_ID if self.by_id else errors.UNKNOWN_TOPIC_OR_PARTITION
                    results.append(PartitionData(want.partition, code, -1))
                    self.failed = True
                elif not 0 <= want.partition < len(topic.partitions):
                    code = errors.UNKNOWN_TOPIC_OR_PARTITION
                    results.append(PartitionData(want.partition, code, -1))
                    self.failed = True
                else:
                    data = self._one(topic.partitions[want.partition], want, left, committed)
                    taken = len(data.records)
                    left -= taken
                    self.size += taken
                    results.append(data)
            self._topics.append(FetchableTopicResponse(name, topic_id, results))

    def _one(self, partition: Partition, want: FetchPartition, left: int, committed: bool) -> PartitionData:
        index = want.partition
        if want.current_leader_epoch > 0:
            self.failed = True
            return PartitionData(index, errors.UNKNOWN_LEADER_EPOCH, -1, aborted_transactions=None)
        self.partitions.append(partition)
        offset = want.fetch_offset
        limit = min(want.partition_max_bytes, left)
        high = partition.high_watermark
        end = partition.last_stable_offset if committed else high
        if offset == end or (limit <= 0 and partition.start_offset <= offset <= high):
            aborted: list[AbortedTransaction] | None = [] if committed else None
            return PartitionData(
                index, 0, high, partition.last_stable_offset, partition.start_offset,
                aborted_transactions=aborted,
            )  # fmt: skip
        try:
            read = partition.read(offset, max(limit, 0), committed=committed)
        except OffsetOutOfRange as e:
            self.failed = True
            return PartitionData(index, e.code, -1, aborted_transactions=None)
        except NotHere as e:
            # On its way from the archive: this request is answered when it is here, or with nothing after max wait.
            if self.broker.archives.fetch(partition, e, self.look_again):
                return PartitionData(
                    index, 0, high, partition.last_stable_offset, partition.start_offset,
                    aborted_transactions=[] if committed else None,
                )  # fmt: skip
            self.failed = True
            return PartitionData(index, e.code, -1, aborted_transactions=None)
        except LogError as e:
            self.failed = True
            return PartitionData(index, e.code, -1, aborted_transactions=None)
        if read.ahead is not None:
            self.broker.archives.fetch_ahead(partition, read.ahead)
        records = Records(read.slices)
        if self.size and records.size > left:  # one oversized batch is for the first partition only
            records.release()
            records = Records([])
        return PartitionData(
            index,
            0,
            read.end_offset,
            read.last_stable_offset,
            read.start_offset,
            aborted_transactions=[AbortedTransaction(p, o) for p, o in read.aborted] if committed else None,
            records=records,
        )

    def response(self) -> FetchResponse:
        """What was read; nothing for a client that is over its quota, which then has to wait."""
        wait = 0
        if self.broker.quotas.active and self.size:
            wait = self.connection.count(FETCH, self.size)
        if wait:
            self.connection.mute(wait / 1000)
            if self.size <= self._burst():
                self.connection.count(FETCH, -self.size)
                self.drop()
                return FetchResponse(wait, 0, self.session.id if self.session is not None else 0, [])
            # A batch larger than any burst would never get through: it goes, and its client waits after it.
        made = self._found()
        made.throttle_time_ms = wait
        return made

    def _burst(self) -> float:
        user = self.connection.principal.partition(":")[2]
        return self.broker.quotas.burst(FETCH, user, self.connection.client_id)

    def _found(self) -> FetchResponse:
        if self.session is not None:
            return self.session.answer(self._topics)
        return FetchResponse(responses=self._topics)

    def drop(self) -> None:
        """Release what was read: it will not be sent."""
        for topic in self._topics:
            for part in topic.partitions:
                if isinstance(part.records, Records):
                    part.records.release()
        self._topics = []

    def wait(self) -> asyncio.Future[FetchResponse]:
        """Answer when min bytes are there, or after max wait."""
        self.drop()
        loop = self.broker.loop
        self._future = loop.create_future()
        self._future.add_done_callback(self._ended)
        self._timer = loop.call_later(self.request.max_wait_ms / 1000, self._expired)
        self._watched = self.partitions
        for partition in self._watched:
            partition.listeners.add(self.wake)
        return self._future

    def wake(self, _: Partition) -> None:
        """An append happened; look again after the producer has its answer."""
        self.look_again()

    def look_again(self) -> None:
        """Read once more, if this still waits."""
        if not self._scheduled and self._future is not None:
            self._scheduled = True
            self.broker.loop.call_soon(self._again)

    def _again(self) -> None:
        self._scheduled = False
        future = self._future
        if future is None or future.done():
            return
        self.read()
        if self.size >= self.request.min_bytes or self.failed:
            future.set_result(self.response())
        else:
            self.drop()

    def _expired(self) -> None:
        future = self._future
        if future is not None and not future.done():
            self.read()
            future.set_result(self.response())

    def _ended(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.listeners.discard(self.wake)
