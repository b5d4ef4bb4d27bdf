"""Garbage, oversized, slow and greedy clients: they are closed with a logged reason, and the others do not notice."""

import contextlib
import socket
import struct
import time

import pytest

from millstream.protocol.messages.api_versions import ApiVersionsRequest
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.protocol.records import build
from tests.broker.serving import Process
from tests.broker.wire import Wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = ("socket.request.max.bytes=20000000", "queued.max.request.bytes=30000000")
    with Process(tmp_path_factory.mktemp("broker") / "data", *settings) as process:
        yield process


def memory(process) -> int:
    """The broker's resident memory in bytes."""
    with open(f"/proc/{process.popen.pid}/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS"))


def works(broker) -> bool:
    with Wire(broker.address) as wire:
        return bool(wire.ask(MetadataRequest(None), 12).brokers)


def header(key, version, length=-1):
    return struct.pack(">hhih", key, version, 1, length)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of 1195725856 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "without TLS?"),
        (struct.pack(">i", -5), "a frame of -5 bytes"),
        (struct.pack(">i", 2) + b"xx", "a frame of 2 bytes"),
        (struct.pack(">i", 20_000_001) + header(0, 9), "a frame of 20000001 bytes"),
        (struct.pack(">i", 9_000_000) + header(3, 9), "a Metadata request of 9000000 bytes"),
        (struct.pack(">i", 10) + header(4, 0), "the API key 4, which this broker does not serve"),
        (struct.pack(">i", 10) + header(83, 1), "the API key 83"),
        (struct.pack(">i", 10) + header(3, 99), "Metadata version 99"),
        (struct.pack(">i", 12) + header(3, 1, 5000) + b"ab", "a client id longer than its request"),
        (struct.pack(">i", 12) + header(3, 12) + b"\x02\x00", "the message ends inside its tagged fields"),
        (struct.pack(">i", 14) + header(3, 1) + b"\x7f\xff\xff\xff", "topics announces a length of 2147483647"),
    ],
)
def test_what_is_not_understood_closes_the_connection_with_a_reason(broker, data, reason):
    with Wire(broker.address) as wire:
        wire.socket.sendall(data)
        assert wire.closed()
    assert reason in broker.log.read_text()
    assert works(broker)


def test_random_bytes(broker):
    import random

    chance = random.Random(1)
    for _ in range(100):
        with Wire(broker.address) as wire:
            size = chance.randrange(8, 200)
            wire.socket.sendall(struct.pack(">i", size) + header(chance.randrange(0, 80), chance.randrange(0, 12)))
            try:
                wire.socket.sendall(chance.randbytes(size - 10 if size > 10 else 0))
                wire.socket.shutdown(socket.SHUT_WR)
                while wire.socket.recv(65536):
                    pass
            except OSError:
                pass
    assert works(broker)


def test_a_hundred_announced_frames_cost_nothing_until_their_bytes_come(broker):
    before = memory(broker)
    greedy = [Wire(broker.address) for _ in range(100)]
    for wire in greedy:
        wire.socket.sendall(struct.pack(">i", 19_000_000) + header(0, 9))
    assert works(broker)
    assert memory(broker) - before < 120_000_000
    # Their bytes come, a megabyte each: more than the budget holds.
    for wire in greedy:
        try:
            wire.socket.settimeout(0.2)
            wire.socket.sendall(b"x" * 1_500_000)
        except (ConnectionError, TimeoutError):
            pass
    assert works(broker)
    assert memory(broker) - before < 120_000_000
    for wire in greedy:
        wire.socket.close()
    assert works(broker)


@pytest.mark.system
def test_too_many_connections_are_turned_away(tmp_path):
    """On a broker of its own: connections that another test left behind would make room while this one counts."""
    with Process(tmp_path / "data", "max.connections=20") as broker:
        wires = [Wire(broker.address) for _ in range(30)]
        try:
            assert all(wire.closed() for wire in wires[20:])
            assert all(wire.ask(ApiVersionsRequest("a", "1"), 3).api_keys for wire in wires[:20])
        finally:
            for wire in wires:
                wire.socket.close()
        until = time.monotonic() + 30
        while not welcome(broker):
            assert time.monotonic() < until, "there is no room again although all others are gone"
        assert broker.log.read_text().count("max.connections is reached") == 1


def welcome(broker) -> bool:
    """Whether one more client is served."""
    try:
        return works(broker)
    except ConnectionError:
        return False


def test_requests_byte_by_byte_and_all_at_once(broker):
    with Wire(broker.address) as wire:
        body = header(3, 1) + struct.pack(">i", -1)
        frame = struct.pack(">i", len(body)) + body
        for byte in frame:
            wire.socket.sendall(bytes([byte]))
        wire._correlation = 1
        assert wire.receive(MetadataRequest(), 1).brokers
        wire.socket.sendall(frame * 500)
        for _ in range(500):
            assert wire.receive(MetadataRequest(), 1).brokers


def test_a_large_request_in_pieces_and_answers_in_order(broker):
    with Wire(broker.address) as wire:
        wire.ask(CreateTopicsRequest([CreatableTopic("large", 1, 1, configs=[])], 5000))
        values = [(b"k", b"x" * 900_000)]
        batch = build(values, int(time.time() * 1000))
        request = ProduceRequest(
            None, -1, 1000, [TopicProduceData("large", bytes(16), [PartitionProduceData(0, batch)])]
        )
        for _ in range(3):
            wire.send(request, 9)
        for expected in range(3):
            [topic] = wire.receive(request, 9).responses
            assert topic.partition_responses[0].base_offset == expected
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50_000_000)
        fetch.topics = [
            FetchTopic("large", bytes(16), [FetchPartition(0, fetch_offset=0, partition_max_bytes=50_000_000)])
        ]
        [topic] = wire.ask(fetch, 12).responses
        assert len(topic.partitions[0].records) == 3 * len(batch)


def test_a_client_that_does_not_read_its_answers_stops_only_itself(broker):
    with Wire(broker.address) as wire:
        wire.socket.settimeout(1)
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50_000_000)
        fetch.topics = [
            FetchTopic("large", bytes(16), [FetchPartition(0, fetch_offset=0, partition_max_bytes=50_000_000)])
        ]
        before = memory(broker)
        sent = 0
        try:
            for _ in range(20_000):
                wire.send(fetch, 12)
                sent += 1
        except TimeoutError:
            pass
        assert works(broker)
        assert memory(broker) - before < 60_000_000
    assert works(broker)


def test_thousands_of_requests_for_megabytes_at_once_do_not_hold_up_others(broker):
    with Wire(broker.address) as greedy:
        config = [CreatableTopicConfig("segment.bytes", str(1 << 20))]
        greedy.ask(CreateTopicsRequest([CreatableTopic("much", 1, 1, [], config)], 5000), 7)
        for _ in range(40):
            batch = bytes(build([(None, bytes(1000))] * 500, int(time.time() * 1000)))
            parts = [PartitionProduceData(0, batch)]
            greedy.ask(ProduceRequest(None, -1, 5000, [TopicProduceData("much", bytes(16), parts)]), 9)
        parts = [FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 24)]
        ask = FetchRequest(
            max_wait_ms=0, max_bytes=1 << 24, session_epoch=-1, topics=[FetchTopic("much", partitions=parts)]
        )
        body = header(1, 12) + b"\0" + ask.encode(12)
        greedy.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # as many as the buffers take
            greedy.socket.sendall((struct.pack(">i", len(body)) + body) * 3000)
        begun = time.monotonic()
        assert works(broker)
        assert time.monotonic() - begun < 1
        greedy.socket.settimeout(20)
        for _ in range(5):  # and it gets its answers
            (size,) = struct.unpack(">i", greedy.exactly(4))
            assert size > 10_000_000
            left = size
            while left:
                left -= len(greedy.socket.recv(min(left, 1 << 20)))


def test_a_long_poll_does_not_hold_up_another_connection(broker):
    with Wire(broker.address) as poller, Wire(broker.address) as other:
        other.ask(CreateTopicsRequest([CreatableTopic("poll", 1, 1)], 5000))
        fetch = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=1_000_000)
        fetch.topics = [
            FetchTopic("poll", bytes(16), [FetchPartition(0, fetch_offset=0, partition_max_bytes=1_000_000)])
        ]
        poller.send(fetch, 12)
        poller.send(MetadataRequest(None), 12)  # waits behind the fetch
        batch = build([(b"k", b"v")], int(time.time() * 1000))
        begin = time.monotonic()
        other.ask(
            ProduceRequest(None, -1, 1000, [TopicProduceData("poll", bytes(16), [PartitionProduceData(0, batch)])]), 9
        )
        [topic] = poller.receive(fetch, 12).responses
        assert time.monotonic() - begin < 1
        assert bytes(topic.partitions[0].records)[61:] == bytes(batch)[61:]
        assert poller.receive(MetadataRequest(), 12).brokers
