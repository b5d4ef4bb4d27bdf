"""Share groups on the wire: workers that fetch, acknowledge, vanish; what each gets, and what a restart leaves of it."""

from __future__ import annotations

import time

import pytest

from millstream.protocol import errors
from tests.broker.serving import Process
from tests.broker.share.workers import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Worker,
    acquired,
    configure,
    create,
    fresh,
    produce,
)
from tests.broker.wire import Wire

SETTINGS = ("group.share.min.record.lock.duration.ms=200", "group.share.min.session.timeout.ms=6000")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Process(tmp_path_factory.mktemp("share") / "data", *SETTINGS) as process:
        yield process


@pytest.fixture
def wire(broker):
    with Wire(broker.address) as opened:
        yield opened


@pytest.fixture
def place(broker, wire):
    """A topic and a group of its own that begins at the start."""
    topic, group = fresh("work"), fresh("group")
    create(wire, topic)
    assert configure(wire, group, share_auto_offset_reset="earliest") == 0
    return topic, group


@pytest.fixture
def hire(broker, place):
    """A worker of the group, joined."""
    workers = []

    def made(name: str = "", joined: bool = True) -> Worker:
        worker = Worker(broker.address, place[1], place[0], name)
        workers.append(worker)
        assert not joined or worker.join().error_code == 0
        return worker

    yield made
    for worker in workers:
        worker.close()


def test_what_is_accepted_does_not_come_again(wire, place, hire):
    produce(wire, place[0], b"a", b"b", b"c")
    a = hire()
    assert a.take() == [(0, 1), (1, 1), (2, 1)]
    assert a.take((0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, REJECT)) == [(1, 2)]
    assert a.acknowledge((1, 1, ACCEPT)) == 0
    assert a.take() == []
    assert a.acknowledge((1, 1, ACCEPT)) == 0  # before the start: it is done


def test_two_workers_share_and_one_that_vanishes_gives_back(wire, place, hire):
    a, b = hire(), hire()
    for value in (b"a", b"b", b"c", b"d"):
        produce(wire, place[0], value)
    assert a.take(records=2) == [(0, 1), (1, 1)]
    assert b.take() == [(2, 1), (3, 1)]
    assert b.acknowledge((0, 0, ACCEPT)) == errors.INVALID_RECORD_STATE
    request = b.request(wait=20_000)
    b.wire.send(request, 2)
    a.close()  # b waits, and has them as soon as a's connection is gone
    assert acquired(b.wire.receive(request, 2)) == [(0, 2), (1, 2)]
    assert b.acknowledge((0, 3, ACCEPT)) == 0


def test_a_long_poll_ends_with_a_record(wire, place, hire):
    a = hire()
    request = a.request(wait=20_000)
    a.wire.send(request, 2)
    time.sleep(0.2)
    produce(wire, place[0], b"x")
    assert acquired(a.wire.receive(request, 2)) == [(0, 1)]
    assert a.take(wait=100) == []


def test_locks_end_and_are_renewed(wire, place, hire):
    assert configure(wire, place[1], share_record_lock_duration_ms="1500") == 0
    produce(wire, place[0], b"a", b"b")
    a, b = hire(), hire()
    answer = a.fetch()
    assert (acquired(answer), answer.acquisition_lock_timeout_ms) == ([(0, 1), (1, 1)], 1500)
    time.sleep(1.0)
    assert a.acknowledge((1, 1, RENEW)) == errors.INVALID_REQUEST  # the request must say so
    assert a.acknowledge((1, 1, RENEW), renew=True) == 0
    assert b.take(wait=20_000) == [(0, 2)]  # it was not renewed
    assert a.acknowledge((0, 0, ACCEPT)) == errors.INVALID_RECORD_STATE
    assert a.acknowledge((1, 1, ACCEPT)) == 0
    assert configure(wire, place[1], share_renew_acknowledge_enable="false") == 0
    assert b.acknowledge((0, 0, RENEW), renew=True) == errors.INVALID_REQUEST


def test_not_more_often_than_the_limit(wire, place, hire):
    assert configure(wire, place[1], share_delivery_count_limit="2") == 0
    produce(wire, place[0], b"a", b"b")
    a = hire()
    assert a.take() == [(0, 1), (1, 1)]
    assert a.take((0, 1, RELEASE)) == [(0, 2), (1, 2)]
    assert a.take((0, 1, RELEASE)) == []


def test_a_batch_comes_back_as_it_is(wire, place, hire):
    produce(wire, place[0], *[b"x"] * 10)
    a = hire()
    for delivery in range(1, 5):
        assert a.take(records=3) == [(offset, delivery) for offset in range(10)]
        assert a.acknowledge((0, 9, RELEASE)) == 0


def test_whole_batches_or_not_more_than_asked(wire, place, hire):
    produce(wire, place[0], *[b"x"] * 10)
    produce(wire, place[0], *[b"x"] * 10)
    a, b = hire(), hire()
    assert [o for o, _ in a.take(records=3, mode=1)] == [0, 1, 2]
    assert [o for o, _ in b.take(records=3)] == list(range(3, 10))  # what is left of the batch
    answer = a.fetch(records=100, mode=1, batch_size=4)
    assert [(r.first_offset, r.last_offset) for r in answer.responses[0].partitions[0].acquired_records] == [(10, 19)]


def test_a_bound_on_what_is_in_flight(wire, place, hire):
    assert configure(wire, place[1], share_partition_max_record_locks="100") == 0
    for _ in range(30):
        produce(wire, place[0], *[b"x"] * 5)
    a, b = hire(), hire()
    assert len(a.take()) == 100
    assert b.take(wait=100) == []
    request = b.request(wait=20_000)
    b.wire.send(request, 2)
    assert a.acknowledge((0, 49, ACCEPT)) == 0  # there is room again, and b is woken
    assert len(acquired(b.wire.receive(request, 2))) == 50


@pytest.mark.parametrize(
    ("session", "code"),
    [(1, errors.SHARE_SESSION_NOT_FOUND), (-1, errors.SHARE_SESSION_NOT_FOUND)],
)
def test_no_session(hire, session, code):
    worker = hire()
    worker.session = session
    assert worker.fetch().error_code == code
    worker.session = session
    assert worker.acknowledge((0, 0, ACCEPT)) == code


def test_epochs_of_sessions(wire, place, hire):
    produce(wire, place[0], b"a")
    a, b = hire(), hire()
    assert a.take() == [(0, 1)]
    a.session = 7
    assert a.fetch().error_code == errors.INVALID_SHARE_SESSION_EPOCH
    assert a.acknowledge((0, 0, ACCEPT), session=0) == errors.INVALID_SHARE_SESSION_EPOCH
    a.session = 0
    assert a.fetch((0, 0, ACCEPT)).error_code == errors.INVALID_REQUEST  # nothing is acknowledged by the first one
    a.session = 1
    assert a.acknowledge((0, 0, RELEASE), session=-1) == 0  # the last one: the session is over
    assert a.fetch().error_code == errors.SHARE_SESSION_NOT_FOUND
    assert b.take() == [(0, 2)]
    b.session = -1
    assert b.fetch().error_code == 0
    assert hire().take() == [(0, 3)]


def test_who_is_no_member_of_a_group_has_no_share(broker, wire, place, hire):
    nobody = hire(joined=False)
    [part] = nobody.fetch().responses[0].partitions
    assert part.error_code == errors.GROUP_ID_NOT_FOUND
