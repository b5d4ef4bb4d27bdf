"""Batches that wait until their transaction is on disk: in order, within the budget, and gone with their client."""

import time

import pytest

from millstream.protocol import errors
from millstream.protocol.messages.init_producer_id import InitProducerIdRequest
from millstream.protocol.messages.produce import ProduceRequest
from tests.broker.transactions.test_endings import STATES, Client, create, inside, stable

__all__ = ["inside"]
pytestmark = pytest.mark.system


def budget(broker):
    return broker.server.broker._budget


def until(what):
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_comes_behind_stays_behind(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        whole = budget(inside)
        let_go = inside.hold(STATES)
        inside.told()
        sent = [client.request(("c", 0), count=n) for n in (1, 2, 3, 4)]
        for request in sent:
            client.send(request, 12)
        inside.until_noted(("write", STATES))
        until(lambda: budget(inside) < whole)
        assert ("write", "c-0") not in inside.events
        let_go()
        answers = [client.receive(request, 12) for request in sent]
        assert [client.codes(answer) for answer in answers] == [[0]] * 4
        assert [answer.responses[0].partition_responses[0].base_offset for answer in answers] == [0, 1, 3, 6]
        until(lambda: budget(inside) == whole)
        assert client.end(version=5) == 0
        assert stable(inside, "c") == 11


def test_of_one_request_only_what_must_wait_waits(inside):
    with inside.wire() as wire:
        create(wire, "c")
        create(wire, "o", "os")
    with Client(inside) as client:
        let_go = inside.hold(STATES)
        inside.told()
        request = client.request(("c", 0), ("o", 1), ("c", 1))
        client.send(request, 12)
        inside.until_noted(("write", "o-1"))
        assert ("write", "c-0") not in inside.events and ("write", "c-1") not in inside.events
        let_go()
        answer = client.receive(request, 12)
        found = [
            (t.name, p.index, p.error_code, p.base_offset) for t in answer.responses for p in t.partition_responses
        ]
        assert found == [("c", 0, 0, 0), ("o", 1, 0, 0), ("c", 1, 0, 0)]
        assert client.end(version=5) == 0


def test_without_acknowledgement_nothing_is_answered(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        request = client.request(("c", 0))
        client.send(ProduceRequest(request.transactional_id, 0, request.timeout_ms, request.topic_data), 12)
        assert client.produce(("c", 0), newer=True) == [0]
        assert client.end(version=5) == 0
        assert stable(inside, "c") == 3


def test_who_is_gone_has_nothing_appended(inside):
    with inside.wire() as wire:
        create(wire, "c")
    whole = budget(inside)
    with Client(inside) as client:
        let_go = inside.hold(STATES)
        inside.told()
        client.send(client.request(("c", 0)), 12)
        inside.until_noted(("write", STATES))
        until(lambda: budget(inside) < whole)
        [connection] = inside.server.broker.connections
        inside.loop.call_soon_threadsafe(connection.close)
        assert client.closed()
    let_go()
    until(lambda: budget(inside) == whole)
    with inside.wire() as wire:
        answer = wire.ask(InitProducerIdRequest("x", 60_000), 5)  # aborts what was begun
        while answer.error_code == errors.CONCURRENT_TRANSACTIONS:
            answer = wire.ask(InitProducerIdRequest("x", 60_000), 5)
    assert stable(inside, "c") == 1, "there is more than the marker of the abort"


def test_a_transaction_that_ended_meanwhile_takes_nothing(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client, inside.wire() as other:
        let_go = inside.hold(STATES)
        inside.told()
        request = client.request(("c", 0))
        client.send(request, 12)
        inside.until_noted(("write", STATES))
        assert other.ask(InitProducerIdRequest("x", 60_000), 5).error_code == errors.CONCURRENT_TRANSACTIONS
        let_go()
        assert client.codes(client.receive(request, 12)) in (
            [errors.CONCURRENT_TRANSACTIONS],
            [errors.INVALID_PRODUCER_EPOCH],
        )


def test_a_refusing_disk_is_answered_so_that_clients_try_again(inside):
    with inside.wire() as wire:
        create(wire, "c")
    with Client(inside) as client:
        inside.fail("sync", STATES)
        inside.told()
        assert client.produce(("c", 0), newer=True) == [errors.NOT_ENOUGH_REPLICAS]
        assert client.offsets("c", 1) == errors.COORDINATOR_NOT_AVAILABLE
        assert inside.told() == [("write", STATES)]
