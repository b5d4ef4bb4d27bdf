"""ShareFetch (key 78), versions 1-2: acquire records of a share group's partitions, and read them (KIP-932).

Acknowledgements that come with it are made first. Then it waits, up to max wait, until records can be acquired: new ones, or such
as another member has released or lost. Whole batches are sent from the log's files; which of their records are the member's
stands beside them. Sessions: `broker/share/sessions.py`. Gaps: partition max bytes is the broker's, as in Kafka; a broker alone
never names another leader.

Version notes: 0 was early access in Kafka 4.0 and is gone; 2 acquires by batches or by records (KIP-1206) and renews locks
(KIP-1222).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millstream.broker import limits
from millstream.broker.apis.a01_fetch import Records
from millstream.broker.apis.a79_share_acknowledge import Results, acknowledged, check_renewal, readable, unsynced
from millstream.broker.refused import Refused
from millstream.broker.security.acls import Operation, Resource
from millstream.broker.security.quotas import FETCH
from millstream.broker.share.coordinator import Given, Live, Wanted
from millstream.broker.share.partition import Mode
from millstream.broker.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Place, ShareSession
from millstream.log import LogError, NotHere
from millstream.protocol import errors
from millstream.protocol.messages.share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

if TYPE_CHECKING:
    from millstream.broker.broker import Broker
    from millstream.broker.network.connection import Connection
    from millstream.log import Partition

# Read of one partition at once: bounds the batches whose headers are looked at.
PARTITION_BYTES = 1024 * 1024


def handle(
    broker: Broker, connection: Connection, request: ShareFetchRequest, version: int
) -> ShareFetchResponse | asyncio.Future[ShareFetchResponse]:
    """Acknowledge, then acquire now, or wait for records."""
    group_id, member = request.group_id or "", request.member_id or ""
    if not connection.may(Operation.READ, Resource.GROUP, group_id):
        return ShareFetchResponse(0, errors.GROUP_AUTHORIZATION_FAILED)
    given = {
        (topic.topic_id, part.partition_index): part.acknowledgement_batches
        for topic in request.topics
        for part in topic.partitions
        if part.acknowledgement_batches
    }
    try:
        if not group_id or not member:
            raise Refused(errors.INVALID_REQUEST, "A share group's member has a group id and a member id.")
        check_renewal(broker, group_id, request.is_renew_ack, given.values())
        _check_renewal_only(request)
        session = _session(connection, request, group_id, member, bool(given))
    except Refused as e:
        return ShareFetchResponse(0, e.code, str(e))
    results = acknowledged(connection, group_id, member, given)
    attempt = Attempt(connection, request, session, results)
    syncing = unsynced(broker, group_id, results)
    if not syncing:
        return attempt.begin()
    answer: asyncio.Future[ShareFetchResponse] = broker.loop.create_future()

    def synced(done: asyncio.Future[bool]) -> None:
        if answer.done():
            return
        if not done.result():
            attempt.results = {p: (c or errors.KAFKA_STORAGE_ERROR, t) for p, (c, t) in results.items()}
        found = attempt.begin()
        if isinstance(found, ShareFetchResponse):
            answer.set_result(found)
            return
        found.add_done_callback(lambda f: None if answer.done() or f.cancelled() else answer.set_result(f.result()))
        answer.add_done_callback(lambda f: found.cancel() if f.cancelled() else None)

    broker.flusher.after(syncing, True, lambda *_: False).add_done_callback(synced)
    return answer


def _check_renewal_only(request: ShareFetchRequest) -> None:
    """Raise Refused for a request that renews locks and wants records (KIP-1222)."""
    if request.is_renew_ack and (request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records):
        text = "With IsRenewAck, MaxWaitMs, MinBytes, MaxBytes and MaxRecords must be 0: nothing is fetched."
        raise Refused(errors.INVALID_REQUEST, text)


def _session(
    connection: Connection, request: ShareFetchRequest, group_id: str, member: str, acknowledges: bool
) -> ShareSession:
    """The session of a request, with what the request changes. Raises Refused.

    Source: SharePartitionManager.newContext.
    """
    sessions, epoch = connection.broker.share_sessions, request.share_session_epoch
    places = [(topic.topic_id, part.partition_index) for topic in request.topics for part in topic.partitions]
    if epoch == INITIAL_EPOCH:
        if acknowledges:
            raise Refused(errors.INVALID_REQUEST, "A share session does not begin with acknowledgements.")
        session = sessions.opened(group_id, member, connection)
    else:
        session = sessions.known(group_id, member, epoch)
    if epoch != FINAL_EPOCH:
        gone = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        sessions.change(session, places, gone)
    return session


class Attempt:
    """A share fetch that acquires, and waits for records when there are none."""

    def __init__(
        self, connection: Connection, request: ShareFetchRequest, session: ShareSession, results: Results
    ) -> None:
        self.connection = connection
        self.broker: Broker = connection.broker
        self.request = request
        self.session = session
        self.results = results
        self._partitions = self.broker.groups.share_partitions
        self._found: dict[Place, PartitionData] = {}
        self._size = 0
        self._failed = False
        self._live: dict[Live, None] = {}
        self._watched: dict[Live, None] = {}
        self._scheduled = False
        self._future: asyncio.Future[ShareFetchResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> ShareFetchResponse | asyncio.Future[ShareFetchResponse]:
        """Acquire now, or wait."""
        if self.request.share_session_epoch == FINAL_EPOCH:
            self.broker.share_sessions.close(self.session)
            return self.response()
        if self.request.is_renew_ack:
            return self.response()
        waits = self.request.max_wait_ms > 0
        self.acquire(enough=not waits)
        if self._size or self._failed or not waits or not self.session.places:
            return self.response()
        return self.wait()

    def acquire(self, *, enough: bool = False) -> None:
        """Acquire what the request has room for; `enough`: fewer than min bytes will do."""
        request = self.request
        left, records = min(request.max_bytes, limits.MAX_FETCH_BYTES), request.max_records
        there = [(place, live) for place in self.session.turn() if (live := self._open(place)) is not None]
        self._live = {live: None for _, live in there}
        if not enough and request.min_bytes > 1 and sum(self._bytes(live) for _, live in there) < request.min_bytes:
            return
        for place, live in there:
            if records <= 0 or (left <= 0 and self._size):
                break
            most = max(min(left, PARTITION_BYTES), 0)
            mode = Mode.RECORD_LIMIT if request.share_acquire_mode else Mode.BATCH_OPTIMIZED
            given = self._acquire(place, live, Wanted(self.session.member, most, records, request.batch_size, mode))
            if given is not None:
                data = Records(given.slices)
                left -= data.size
                self._size += data.size
                records -= sum(each.last - each.first + 1 for each in given.acquired)
                acquired = [AcquiredRecords(*each) for each in given.acquired]
                self._found[place] = PartitionData(place[1], records=data, acquired_records=acquired)

    def _open(self, place: Place) -> Live | None:
        topic_id, index = place
        try:
            topic = readable(self.connection, self.broker.topic_by_id(topic_id), index)
            return self._partitions.open(self.session.group_id, topic, index)
        except Refused as e:
            self._fail(place, e.code, str(e))
        except NotHere as e:  # where it begins is in the archive
            self._fetch(place, topic.partitions[index], e)
        except LogError as e:
            self._fail(place, e.code, str(e))
        return None

    def _fetch(self, place: Place, partition: Partition, missing: NotHere) -> None:
        """Have what is in the archive brought here; this looks again when it is, or has nothing after max wait."""
        if not self.broker.archives.fetch(partition, missing, self.look_again):
            self._fail(place, missing.code, str(missing))

    def _acquire(self, place: Place, live: Live, wanted: Wanted) -> Given | None:
        try:
            return self._partitions.acquire(live, wanted)
        except NotHere as e:
            self._fetch(place, live.partition, e)
        except (Refused, LogError) as e:
            self._fail(place, e.code, str(e))
        return None

    def _bytes(self, live: Live) -> int:
        offset = live.state.next_offset
        return live.partition.bytes_from(offset) if offset < self._partitions.last_readable(live) else 0

    def _fail(self, place: Place, code: int, text: str) -> None:
        self._failed = True
        self._found[place] = PartitionData(place[1], code, text)

    def response(self) -> ShareFetchResponse:
        """What was acquired and acknowledged; partitions of which there is nothing to say are left out."""
        for place, (code, text) in self.results.items():
            part = self._found.setdefault(place, PartitionData(place[1]))
            part.acknowledge_error_code, part.acknowledge_error_message = code, text
        topics: dict[bytes, list[PartitionData]] = {}
        for (topic_id, _), part in self._found.items():
            topics.setdefault(topic_id, []).append(part)
        wait = 0
        if self._size and self.broker.quotas.active:
            wait = self.connection.count(FETCH, self._size)
            if wait:
                self.connection.mute(wait / 1000)
        lock = self.broker.dynamic.of_group(self.session.group_id, "share.record.lock.duration.ms")
        responses = [ShareFetchableTopicResponse(topic_id, parts) for topic_id, parts in topics.items()]
        return ShareFetchResponse(wait, 0, None, lock, responses)

    # ---- waiting

    def wait(self) -> asyncio.Future[ShareFetchResponse]:
        """Answer when something could be acquired, or after max wait."""
        loop = self.broker.loop
        self._future = loop.create_future()
        self._future.add_done_callback(self._ended)
        self._timer = loop.call_later(self.request.max_wait_ms / 1000, self._expired)
        self._watched = self._live
        for live in self._watched:
            live.wait(self.look_again)
        return self._future

    def look_again(self) -> None:
        """Try once more, if this still waits, after what has happened is over."""
        if not self._scheduled and self._future is not None:
            self._scheduled = True
            self.broker.loop.call_soon(self._again)

    def _again(self) -> None:
        self._scheduled = False
        self._try(enough=False)

    def _expired(self) -> None:
        self._try(enough=True)

    def _try(self, *, enough: bool) -> None:
        future = self._future
        if future is None or future.done():
            return
        self.acquire(enough=enough)
        if enough or self._size or self._failed:
            future.set_result(self.response())

    def _ended(self, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for live in self._watched:
            live.leave(self.look_again)
