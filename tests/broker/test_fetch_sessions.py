"""Incremental fetch sessions: what is told when, what is refused, and the bounds of the cache."""

import pytest

from millstream.broker import limits
from millstream.broker.fetch_sessions import FetchSessions
from millstream.protocol import errors
from millstream.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

T = b"t" * 16


def request(session_id=0, epoch=0, partitions=(), forgotten=()):
    made = FetchRequest(session_id=session_id, session_epoch=epoch)
    if partitions:
        made.topics = [FetchTopic("", T, [FetchPartition(p, fetch_offset=offset) for p, offset in partitions])]
    if forgotten:
        made.forgotten_topics_data = [ForgottenTopic("", T, list(forgotten))]
    return made


def answer(session, *parts):
    data = [PartitionData(p, code, end, end, 0, records=records) for p, code, end, records in parts]
    response = session.answer([FetchableTopicResponse("", T, data)])
    return response.session_id, [p.partition_index for t in response.responses for p in t.partitions]


@pytest.fixture
def sessions():
    return FetchSessions()


def test_only_changes_are_told(sessions):
    session = sessions.open(request(partitions=[(0, 5), (1, 0)]), 13)
    assert answer(session, (0, 0, 5, b""), (1, 0, 0, b"")) == (session.id, [0, 1])
    again = sessions.open(request(session.id, 1), 13)
    assert again is session
    assert answer(session, (0, 0, 5, b""), (1, 0, 0, b"")) == (session.id, [])
    assert answer(session, (0, 0, 6, b"data"), (1, 0, 0, b"")) == (session.id, [0])
    assert answer(session, (0, 0, 6, b""), (1, 1, -1, b"")) == (session.id, [1])
    assert answer(session, (0, 0, 6, b""), (1, 0, 0, b"")) == (session.id, [1])  # it works again


def test_partitions_are_added_changed_and_forgotten(sessions):
    session = sessions.open(request(partitions=[(0, 5)]), 13)
    sessions.open(request(session.id, 1, partitions=[(0, 9), (2, 0)]), 13)
    assert {p: f.fetch_offset for p, f in session.partitions[(T, "")].items()} == {0: 9, 2: 0}
    sessions.open(request(session.id, 2, forgotten=[0, 7]), 13)
    assert list(session.partitions[(T, "")]) == [2]
    sessions.open(request(session.id, 3, forgotten=[2]), 13)
    assert session.partitions == {}


def test_a_partition_with_data_goes_last_next_time(sessions):
    session = sessions.open(request(partitions=[(0, 0), (1, 0), (2, 0)]), 13)
    answer(session, (0, 0, 5, b"data"), (1, 0, 0, b""), (2, 0, 0, b""))
    assert list(session.partitions[(T, "")]) == [1, 2, 0]


def test_what_is_refused(sessions):
    session = sessions.open(request(partitions=[(0, 0)]), 13)
    for bad, version, code in [
        (request(session.id + 1, 1), 13, errors.FETCH_SESSION_ID_NOT_FOUND),
        (request(session.id, 2), 13, errors.INVALID_FETCH_SESSION_EPOCH),
        (request(session.id, 1), 12, errors.FETCH_SESSION_TOPIC_ID_ERROR),
    ]:
        refused = sessions.open(bad, version)
        assert isinstance(refused, FetchResponse)
        assert refused.error_code == code


def test_the_final_epoch_closes_and_a_client_without_sessions_has_none(sessions):
    session = sessions.open(request(partitions=[(0, 0)]), 13)
    assert sessions.open(request(session.id, -1), 13) is None
    assert sessions.open(request(session.id, 1), 13).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.open(request(0, -1, partitions=[(0, 0)]), 13) is None


def test_the_cache_is_bounded(sessions, monkeypatch):
    monkeypatch.setattr(limits, "MAX_FETCH_SESSIONS", 2)
    monkeypatch.setattr(limits, "MAX_SESSION_PARTITIONS", 5)
    first, second, third = (sessions.open(request(partitions=[(0, 0)]), 13) for _ in range(3))
    assert sessions.open(request(first.id, 1), 13).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.open(request(second.id, 1), 13) is second
    assert sessions.open(request(partitions=[(p, 0) for p in range(6)]), 13) is None
    many = sessions.open(request(partitions=[(p, 0) for p in range(5)]), 13)
    assert many is not None
    assert sessions.open(request(third.id, 1), 13).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
