"""Compressed batches that take long to check: on threads, in order, without holding up anybody else."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer

from millstream.broker import limits
from millstream.protocol import errors, records
from millstream.protocol.compression import MAX_UNCOMPRESSED, compress
from millstream.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.batches import packed
from tests.broker.inside import Inside

pytestmark = pytest.mark.system
NOW = int(time.time() * 1000)


@pytest.fixture
def inside(tmp_path):
    with Inside(tmp_path / "data", **{"message.max.bytes": "50000000"}) as inside:
        yield inside


def create(inside, name, count=1, **config):
    pairs = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in config.items()]
    with inside.wire() as wire:
        [made] = wire.ask(CreateTopicsRequest([CreatableTopic(name, count, 1, [], pairs)]), 7).topics
        assert not made.error_code, made


def request(topic, *batches, acks=-1):
    """One batch for each partition."""
    parts = [PartitionProduceData(index, bytes(data)) for index, data in enumerate(batches)]
    return ProduceRequest(None, acks, 30_000, [TopicProduceData(topic, partition_data=parts)])


def results(answer):
    return [(part.error_code, part.base_offset) for part in answer.responses[0].partition_responses]


def large(number=0, **options):
    """A batch that is checked on a thread."""
    rows = [(b"k", b"%d number %d" % (number, i)) for i in range(20_000)]
    data = records.build(rows, NOW, codec=records.ZSTD, **options)
    assert sum(len(value) for _, value in rows) > limits.UNPACK_BYTES
    return data


@contextmanager
def held(inside):
    """No batch is checked meanwhile: the threads are busy."""
    let_go = threading.Event()
    for _ in range(limits.UNPACKING_THREADS):
        inside.broker.checking.submit(let_go.wait)
    try:
        yield
    finally:
        let_go.set()


def test_what_a_connection_sends_stays_in_order(inside):
    create(inside, "t")
    small = records.build([(b"k", b"v")], NOW)
    with inside.wire() as wire:
        with held(inside):
            sent = [request("t", data) for data in (large(1), small, large(2), small)]
            for each in sent:
                wire.send(each, 11)
            inside.until(lambda: inside.broker.checking._work_queue.qsize())
            time.sleep(0.1)
            assert inside.broker.log.topics["t"].partitions[0].end_offset == 0
        assert [results(wire.receive(each, 11)) for each in sent] == [
            [(0, 0)], [(0, 20_000)], [(0, 20_001)], [(0, 40_001)],
        ]  # fmt: skip


def test_others_are_served_meanwhile(inside):
    create(inside, "t", 2)
    small = records.build([(b"k", b"v")], NOW)
    with inside.wire() as slow, inside.wire() as quick:
        with held(inside):
            waiting = request("t", large(), small)
            slow.send(waiting, 11)
            inside.until(lambda: inside.broker.checking._work_queue.qsize())
            start = time.monotonic()
            assert quick.ask(MetadataRequest(None), 12).topics
            assert results(quick.ask(request("t", small), 11)) == [(0, 0)]
            assert time.monotonic() - start < 1
        # Of one request only what takes long waits; both are answered together.
        assert results(slow.receive(waiting, 11)) == [(0, 1), (0, 0)]


def test_the_bytes_that_wait_are_charged_and_given_back(inside):
    create(inside, "t")
    whole = inside.broker._budget
    with inside.wire() as wire:
        with held(inside):
            wire.send(request("t", large()), 11)
            inside.until(lambda: inside.broker._budget < whole)
        inside.until(lambda: inside.broker._budget == whole)
    assert inside.broker.log.topics["t"].partitions[0].end_offset == 20_000


def test_a_client_that_leaves_meanwhile(inside):
    create(inside, "t")
    whole = inside.broker._budget
    with held(inside), inside.wire() as wire:
        wire.send(request("t", large()), 11)
        inside.until(lambda: inside.broker._budget < whole)
    inside.until(lambda: inside.broker._budget == whole)
    create(inside, "u")
    with inside.wire() as wire:
        assert results(wire.ask(request("u", large()), 11)) == [(0, 0)]
    assert inside.broker.log.topics["t"].partitions[0].end_offset in (0, 20_000)


def test_many_small_bombs_in_one_request(inside):
    """Each unpacks to as much as is unpacked at once: behind the first turn the others go to the threads."""
    create(inside, "t", 300)
    data = records.build([(b"k", bytes(limits.UNPACK_BYTES - 1000))], NOW, codec=records.GZIP)
    longest = 0.0
    done = threading.Event()

    def ping():
        nonlocal longest
        with inside.wire() as wire:
            while not done.is_set():
                start = time.perf_counter()
                wire.ask(MetadataRequest([]), 12)
                longest = max(longest, time.perf_counter() - start)

    thread = threading.Thread(target=ping)
    thread.start()
    with inside.wire() as wire:
        assert results(wire.ask(request("t", *[data] * 300), 11)) == [(0, 0)] * 300
    done.set()
    thread.join()
    assert longest < 0.2  # all of them at once: 300 times a millisecond


@pytest.mark.parametrize("codec", [records.GZIP, records.SNAPPY, records.LZ4, records.ZSTD])
def test_a_bomb(inside, codec):
    create(inside, "t")
    bomb = bytes(compress(codec, bytes(MAX_UNCOMPRESSED + 1)))
    data = bytearray(records.HEADER_SIZE) + bomb
    header = records.header(records.build([(b"k", b"v")], NOW))
    records.HEADER.pack_into(data, 0, *header._replace(length=len(data) - 12, attributes=codec))
    records.seal(data)
    with inside.wire() as wire:
        assert results(wire.ask(request("t", data), 11)) == [(errors.INVALID_RECORD, -1)]
        assert results(wire.ask(request("t", large()), 11)) == [(0, 0)]


def test_a_large_batch_that_is_wrong(inside):
    create(inside, "t", cleanup_policy="compact")
    rows = [(None if i in (3, 7) else b"k", b"v%d" % i) for i in range(50_000)]
    data = records.build(rows, NOW, codec=records.ZSTD)
    with inside.wire() as wire:
        [part] = wire.ask(request("t", data), 11).responses[0].partition_responses
        assert (part.error_code, part.log_start_offset) == (errors.INVALID_RECORD, 0)
        assert [each.batch_index for each in part.record_errors] == [3, 7]
        data[100:110] = bytes(10)
        records.seal(data)
        [part] = wire.ask(request("t", data), 11).responses[0].partition_responses
        assert part.error_code == errors.UNKNOWN_SERVER_ERROR
        assert "damaged" in part.error_message
    with inside.wire() as wire:  # without acknowledgement: as with an error that is found at once
        wire.send(request("t", data, acks=0), 11)
        assert wire.closed()


def test_a_large_batch_that_has_to_be_packed_again(inside):
    create(inside, "t", compression_type="gzip")
    with inside.wire() as wire:
        assert results(wire.ask(request("t", large()), 11)) == [(0, 0)]
        assert results(wire.ask(request("t", records.build([(b"k", bytes(10**6))], NOW)), 11)) == [(0, 20_000)]
    data = inside.broker.log.topics["t"].partitions[0].read(0, 1 << 20)
    assert sum(piece.size for piece in data.slices) < 200_000
    for piece in data.slices:
        piece.release()


def test_one_bad_producer_stops_no_reader(inside):
    """What it is all about: a consumer of librdkafka repeats _BAD_COMPRESSION for ever where it stands."""
    create(inside, "t")
    producer = Producer({"bootstrap.servers": inside.address, "compression.type": "lz4"})
    producer.produce("t", b"first")
    assert producer.flush(10) == 0
    with inside.wire() as wire:
        for codec in range(1, 5):
            [(code, _)] = results(wire.ask(request("t", packed(codec, "garbage", NOW)), 11))
            assert code == errors.UNKNOWN_SERVER_ERROR
    producer.produce("t", b"last")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": inside.address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found = []
    deadline = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    assert found == [b"first", b"last"]


@pytest.mark.parametrize("codec", range(5))
def test_the_offset_of_the_largest_timestamp(inside, codec):
    create(inside, "t")
    with inside.wire() as wire:
        assert results(wire.ask(request("t", packed(codec, "early", NOW)), 11)) == [(0, 0)]
        asked = ListOffsetsRequest(topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-3)])])
        [part] = wire.ask(asked, 7).topics[0].partitions
        assert (part.error_code, part.offset, part.timestamp) == (0, 1, NOW + 7)
