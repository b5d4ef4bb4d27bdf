"""The bounds on clients, one by one: idle, hoarding, silent, greedy; each ends, gives back what it held, and hurts nobody."""

import contextlib
import socket
import struct
import time

import pytest

from millstream.broker import limits
from millstream.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.metadata import MetadataRequest
from tests.broker.inside import Inside
from tests.broker.wire import Wire
from tests.certificates import certificate

pytestmark = pytest.mark.system
PRODUCE = struct.pack(">hhih", 0, 9, 1, -1)
BUDGET = 8 << 20


@pytest.fixture
def small(monkeypatch):
    """Bounds that are reached within a test."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(limits, "AUTHENTICATION_SECONDS", 0.6)
    monkeypatch.setattr(limits, "MAX_UNAUTHENTICATED", 10)
    monkeypatch.setattr(limits, "MAX_IN_FLIGHT", 8)


@pytest.fixture
def broker(small, tmp_path):
    with Inside(tmp_path / "data", **{"queued.max.request.bytes": str(BUDGET)}) as inside:
        yield inside
        inside.until(lambda: not inside.broker.connections)
        at_rest(inside.broker)


def at_rest(broker):
    """Nothing is held for anybody."""
    assert broker._budget == BUDGET
    assert broker.unfinished == 0
    assert not broker.backpressured
    assert not broker.unauthenticated


def works(wire):
    return bool(wire.ask(MetadataRequest(None), 12).brokers)


def test_who_is_idle_is_closed_and_who_is_not_stays(small, tmp_path):
    with (
        Inside(tmp_path / "data", **{"connections.max.idle.ms": "1000"}) as inside,
        Wire(inside.address) as idle,
        Wire(inside.address) as busy,
    ):
        assert works(idle)
        start = time.monotonic()
        idle.socket.settimeout(0.2)
        while True:
            assert works(busy)
            try:
                assert idle.closed()
                break
            except TimeoutError:
                assert time.monotonic() - start < 20
        assert time.monotonic() - start >= 0.9
        assert works(busy)


def test_waiting_for_an_answer_is_not_idle(small, tmp_path):
    with Inside(tmp_path / "data", **{"connections.max.idle.ms": "1000"}) as inside, Wire(inside.address) as wire:
        wire.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5000), 7)
        poll = FetchRequest(max_wait_ms=2500, min_bytes=1, topics=[FetchTopic("t", partitions=[FetchPartition(0)])])
        start = time.monotonic()
        assert wire.ask(poll, 12).error_code == 0
        assert time.monotonic() - start > 2.4
        assert works(wire)


@pytest.mark.parametrize("size", [100, 10_000, 5_000_000])
def test_the_rest_of_a_request_does_not_come(broker, size):
    """A hoarder of buffers, small and large."""
    with Wire(broker.address) as hoarder, Wire(broker.address) as other:
        hoarder.socket.sendall(struct.pack(">i", size) + PRODUCE)
        start = time.monotonic()
        assert hoarder.closed()
        assert time.monotonic() - start >= 0.4
        assert works(other)


def test_a_request_may_come_slowly(broker):
    with Wire(broker.address) as slow:
        body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", -1)
        start = time.monotonic()
        for byte in struct.pack(">i", len(body)) + body:
            slow.socket.sendall(bytes([byte]))
            time.sleep(0.1)
        assert time.monotonic() - start > 3 * limits.STALL_SECONDS
        slow._correlation = 1
        assert slow.receive(MetadataRequest(), 1).brokers


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("trickles", [False, True])
def test_who_does_not_say_who_it_is(small, tmp_path, protocol, trickles):
    """Silent, or with a byte now and then: it has so long in all."""
    pem = certificate(tmp_path, "localhost")
    with Inside(tmp_path / "data", f"{protocol}://127.0.0.1:0", **{"ssl.keystore.location": str(pem)}) as inside:
        host, port = inside.address.split(":")
        with socket.create_connection((host, int(port)), timeout=0.1) as sock:
            start = time.monotonic()
            opening = b"\x16\x03\x01\x02\x00\x01\x00\x01" if "SSL" in protocol else struct.pack(">i", 100)
            while time.monotonic() - start < 20:
                with contextlib.suppress(TimeoutError):
                    if trickles and opening:
                        sock.sendall(opening[:1])
                        opening = opening[1:]
                    if sock.recv(1) == b"":
                        break
            assert 0.5 <= time.monotonic() - start < 10
        inside.until(lambda: not inside.broker.connections and not inside.broker.unauthenticated)


def test_many_who_do_not_say_who_they_are_make_way(small, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "AUTHENTICATION_SECONDS", 60.0)
    with Inside(tmp_path / "data", "SASL_PLAINTEXT://127.0.0.1:0") as inside:
        silent = [Wire(inside.address) for _ in range(35)]
        inside.until(lambda: len(inside.broker.unauthenticated) == limits.MAX_UNAUTHENTICATED)
        assert all(wire.closed() for wire in silent[:25])  # the oldest
        assert len(inside.broker.connections) == limits.MAX_UNAUTHENTICATED
        for wire in silent:
            wire.socket.close()


def test_requests_under_way_are_bounded_and_answered_in_order(broker):
    with Wire(broker.address) as wire, Wire(broker.address) as other:
        wire.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 5000), 7)
        poll = FetchRequest(max_wait_ms=150, min_bytes=1, topics=[FetchTopic("t", partitions=[FetchPartition(0)])])
        count = 5 * limits.MAX_IN_FLIGHT
        for _ in range(count):
            wire.send(poll, 12)
        connections = broker.broker.connections
        broker.until(lambda: any(len(c._waiting) == limits.MAX_IN_FLIGHT for c in connections))
        for expected in range(2, count + 2):
            assert works(other)
            assert all(len(c._waiting) <= limits.MAX_IN_FLIGHT for c in list(connections))
            size, correlation = struct.unpack(">ii", wire.exactly(8))
            wire.exactly(size - 4)
            assert correlation == expected


def test_unfinished_requests_share_a_budget(broker):
    """queued.max.request.bytes over all connections: never more, the oldest are given up, and it comes back."""
    least = BUDGET
    greedy = []
    with Wire(broker.address) as other:
        for _ in range(30):
            wire = Wire(broker.address)
            greedy.append(wire)
            wire.socket.settimeout(0.2)
            with contextlib.suppress(OSError):
                wire.socket.sendall(struct.pack(">i", 6_000_000) + PRODUCE + bytes(1_500_000))
            least = min(least, broker.broker._budget)
            assert least >= 0
            assert works(other)
        assert broker.broker.unfinished * limits.FIRST_BUFFER_BYTES <= BUDGET
        assert least < BUDGET / 2  # it was used
        broker.until(lambda: len(broker.broker.connections) == 1)  # they stall, and go
        at_rest(broker.broker)
        for wire in greedy:
            wire.socket.close()
        assert works(other)


@pytest.mark.parametrize("how", ["quietly", "with a reset"])
def test_clients_that_vanish_leave_nothing(broker, how):
    wires = [Wire(broker.address) for _ in range(20)]
    for at, wire in enumerate(wires):
        with contextlib.suppress(OSError):
            wire.socket.settimeout(0.2)
            wire.socket.sendall(struct.pack(">i", [50, 5_000, 3_000_000][at % 3]) + PRODUCE + b"x" * 30)
        if how == "with a reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.socket.close()
    broker.until(lambda: not broker.broker.connections)
    at_rest(broker.broker)
