"""Incremental fetch sessions (KIP-227): a client names its partitions once, answers hold only what changed.

A client opens one with session id 0 and epoch 0, then sends only changes under the id with rising epochs. Sessions are
a cache: the least recently used ones go when there are too many, and the client starts over with a full fetch.
"""

from __future__ import annotations

import random
from collections import OrderedDict

from millstream.broker import limits
from millstream.protocol import errors
from millstream.protocol.messages.fetch import FetchableTopicResponse, FetchPartition, FetchRequest, FetchResponse

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF


class Session:
    """The partitions that a client follows, and what it was last told of each."""

    def __init__(self, session_id: int, by_id: bool) -> None:
        self.id = session_id
        self.epoch = 1  # what the next request must carry
        self.by_id = by_id
        self.full = True  # the next answer holds every partition
        # (topic id, name) -> partition -> what to fetch; the order is the client's
        self.partitions: dict[tuple[bytes, str], dict[int, FetchPartition]] = {}
        self._told: dict[tuple[bytes, str, int], tuple[int, int, int]] = {}

    @property
    def size(self) -> int:
        """Partitions in the session."""
        return sum(len(parts) for parts in self.partitions.values())

    def change(self, request: FetchRequest) -> None:
        """Take over what a request adds, changes and forgets."""
        for topic in request.topics:
            parts = self.partitions.setdefault((topic.topic_id, topic.topic), {})
            for part in topic.partitions:
                parts[part.partition] = part
        for gone in request.forgotten_topics_data:
            key = (gone.topic_id, gone.topic)
            known = self.partitions.get(key)
            if known is None:
                continue
            for index in gone.partitions:
                known.pop(index, None)
                self._told.pop((*key, index), None)
            if not known:
                del self.partitions[key]

    def answer(self, topics: list[FetchableTopicResponse]) -> FetchResponse:
        """A response with the partitions that have records, an error, or changed offsets."""
        full, self.full = self.full, False
        kept = []
        for topic in topics:
            key = (topic.topic_id, topic.topic)
            parts = []
            for part in topic.partitions:
                state = (part.high_watermark, part.last_stable_offset, part.log_start_offset)
                told = (*key, part.partition_index)
                if full or part.error_code or len(part.records) or self._told.get(told) != state:
                    parts.append(part)
                if part.error_code:
                    self._told.pop(told, None)
                else:
                    self._told[told] = state
            if parts:
                kept.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
        known = self.partitions
        for response in kept:  # partitions with data go last in the next round, so that none starves
            key = (response.topic_id, response.topic)
            if key not in known:
                continue
            moved = known[key]
            for part in response.partitions:
                if len(part.records) and part.partition_index in moved:
                    moved[part.partition_index] = moved.pop(part.partition_index)
            known[key] = known.pop(key)
        return FetchResponse(session_id=self.id, responses=kept)


class FetchSessions:
    """All sessions, bounded in number and in partitions."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._partitions = 0

    def open(self, request: FetchRequest, version: int) -> Session | FetchResponse | None:
        """The session of a request: None for a sessionless fetch, a response when it must be refused."""
        by_id = version >= 13
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._drop(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._new(request, by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchResponse(error_code=errors.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchResponse(error_code=errors.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return FetchResponse(error_code=errors.FETCH_SESSION_TOPIC_ID_ERROR)
        before = session.size
        session.change(request)
        self._partitions += session.size - before
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        self._sessions.move_to_end(session.id)
        return session

    def _new(self, request: FetchRequest, by_id: bool) -> Session | None:
        count = sum(len(topic.partitions) for topic in request.topics)
        while self._sessions and (
            len(self._sessions) >= limits.MAX_FETCH_SESSIONS or self._partitions + count > limits.MAX_SESSION_PARTITIONS
        ):
            self._drop(next(iter(self._sessions)))
        if not count or count > limits.MAX_SESSION_PARTITIONS:
            return None
        while True:
            session_id = random.randint(1, 0x7FFFFFFF)
            if session_id not in self._sessions:
                break
        session = self._sessions[session_id] = Session(session_id, by_id)
        session.change(request)
        self._partitions += session.size
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.size
