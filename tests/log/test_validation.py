"""What a compressed batch must be like: it is unpacked and checked as Apache Kafka does, and packed again where a topic says so.

The codes are Kafka 4.4's; tests/differential asks it.
"""

from __future__ import annotations

import resource
import threading
import time

import cramjam
import pytest

from millstream.log.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    MessageTooLarge,
    UnreadableCompression,
)
from millstream.log.validation import prepare
from millstream.protocol import compression, records, walk
from millstream.protocol.compression import MAX_UNCOMPRESSED, TooLarge
from tests.batches import packed
from tests.log.logs import NOW, batch, consume, content, keyed, open_log, values

PACKED = [records.GZIP, records.SNAPPY, records.LZ4, records.ZSTD]


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


@pytest.fixture
def partition(log):
    return log.create("numbers", 1).partitions[0]


def raw(codec, payload, count=1, **fields):
    """A batch around bytes that stand for compressed records."""
    out = bytearray(records.HEADER_SIZE) + payload
    header = records.header(batch(b"v"))._replace(
        length=len(out) - records.OVERHEAD, attributes=codec, record_count=count, last_offset_delta=count - 1, **fields
    )
    records.HEADER.pack_into(out, 0, *header)
    records.seal(out)
    return out


@pytest.mark.parametrize(
    ("codec", "inside"),
    [(codec, inside) for codec in PACKED for inside in ("garbage", "cut", "half")]
    # Of zstd no bytes at all are no records (87), in Kafka too.
    + [(codec, "no payload") for codec in PACKED if codec != records.ZSTD],
)
def test_what_cannot_be_unpacked(partition, codec, inside):
    with pytest.raises(UnreadableCompression) as caught:
        partition.append(bytearray(packed(codec, inside, NOW)), NOW)
    assert (caught.value.code, caught.value.records, partition.end_offset) == (-1, (), 0)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    "inside", ["nothing", "no records", "zeros", "more", "fewer", "body", "value", "headers", "trailing", "numbers"]
)
def test_what_is_no_records(partition, codec, inside):
    with pytest.raises(InvalidRecord) as caught:
        partition.append(bytearray(packed(codec, inside, NOW)), NOW)
    assert (caught.value.code, caught.value.records, partition.end_offset) == (87, (), 0)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("inside", ["late", "early", "good"])
def test_the_largest_timestamp_is_that_of_the_records(partition, codec, inside):
    data = bytearray(packed(codec, inside, NOW))
    partition.append(data, NOW)
    [header] = [head for _, head in records.headers(content(partition.read(0, 10_000)))]
    assert header.max_timestamp == NOW + 7
    assert records.valid(content(partition.read(0, 10_000)))
    assert partition.offset_of_max_timestamp() == (1, NOW + 7)


@pytest.mark.parametrize("codec", range(5))
def test_each_record_that_is_to_blame_is_named(log, codec):
    partition = log.create("compacted", 1, {"cleanup.policy": "compact"}).partitions[0]
    rows = [(None, b"v"), (b"k", b"v"), (None, b"v"), (b"k", b"v")]
    with pytest.raises(InvalidRecord) as caught:
        partition.append(records.build(rows, NOW, codec=codec), NOW)
    text = "Compacted topic cannot accept message without key in topic partition compacted-0"
    assert caught.value.records == [(0, text), (2, text)]
    with pytest.raises(InvalidTimestamp) as caught:  # which goes before a missing key
        partition.append(records.build(rows, [NOW, NOW + 10**8, NOW, NOW], codec=codec), NOW)
    assert [number for number, _ in caught.value.records] == [0, 1, 2]
    assert caught.value.records[1][1].startswith(f"Timestamp {NOW + 10**8} of message with offset 1 is out of range.")
    assert "message.timestamp.after.max.ms" in str(caught.value)


def test_not_more_are_named_than_is_useful(log):
    partition = log.create("compacted", 1, {"cleanup.policy": "compact"}).partitions[0]
    with pytest.raises(InvalidRecord) as caught:
        partition.append(records.build([(None, b"v")] * 5000, NOW, codec=records.ZSTD), NOW)
    assert len(caught.value.records) == walk.MAX_BAD


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_with_bounded_memory(partition, codec):
    """30 kB of zstd that unpack to a gigabyte (less of it for codecs that pack less)."""
    if codec == records.ZSTD:
        packer = cramjam.zstd.Compressor()
        for _ in range(64):
            packer.compress(bytes(16 * 1024 * 1024))
        bomb = raw(codec, bytes(packer.finish()))
        assert len(bomb) < 60_000
    else:
        bomb = raw(codec, bytes(compression.compress(codec, bytes(MAX_UNCOMPRESSED + 1))))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = partition.topic.config.with_changes({"max.message.bytes": "100000000"})
    with pytest.raises(InvalidRecord, match="unpacks to more than the 134217728 bytes"):
        prepare(bomb, config, NOW, "numbers-0")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * MAX_UNCOMPRESSED // 1024
    # Asked with little room, it takes little time.
    start = time.process_time()
    with pytest.raises(TooLarge):
        prepare(bomb, config, NOW, "numbers-0", room=128 * 1024)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize("codec", PACKED)
def test_other_threads_run_while_a_batch_is_unpacked_and_walked(log, codec):
    topic = log.create("large", 1, {"max.message.bytes": "100000000"})
    data = records.build([(b"k", b"%d" % (i * 7919)) for i in range(60_000)], NOW, codec=codec)
    done = threading.Event()
    longest = 0.0

    def work():
        for _ in range(3):
            prepare(data[:], topic.config, NOW, "large-0")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    last = time.perf_counter()
    while not done.is_set():
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    assert longest < 0.25


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", range(5))
def test_a_topic_packs_again_what_came_otherwise(log, target, codec):
    topic = log.create("packed", 1, {"compression.type": target})
    partition, wanted = topic.partitions[0], ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(target)
    rows = [(b"a", b"1" * 300, [("h", b"x"), ("n", None)]), (b"b", None), (None, b"3")]
    ours = {"producer_id": 7, "producer_epoch": 1, "codec": codec}
    for first in (0, 3, 3):  # the third is a duplicate
        came = records.build(rows, [NOW + 2, NOW + 9, NOW], base_sequence=first, **ours)
        appended = partition.append(came, NOW)
    assert appended.duplicate and (appended.base_offset, appended.last_offset) == (3, 5)
    data = content(partition.read(0, 10_000))
    heads = [head for _, head in records.headers(data)]
    assert [(h.codec, h.base_offset, h.max_timestamp, h.producer_id, h.base_sequence) for h in heads] == [
        (wanted, 0, NOW + 9, 7, 0),
        (wanted, 3, NOW + 9, 7, 3),
    ]
    assert [(r.timestamp - NOW, r.key, r.value, list(r.headers)) for r in consume(partition)][3:] == [
        (2, b"a", b"1" * 300, [("h", b"x"), ("n", None)]),
        (9, b"b", None, []),
        (0, None, b"3", []),
    ]


def test_levels_are_those_of_the_topic(log):
    value = b"".join(b"%d " % (i * i) for i in range(20_000))
    sizes = []
    for level in ("1", "19"):
        config = {"compression.type": "zstd", "compression.zstd.level": level}
        partition = log.create(f"level-{level}", 1, config).partitions[0]
        partition.append(batch(value), NOW)
        sizes.append(partition.size)
    assert sizes[0] > sizes[1]


def test_what_is_packed_again_is_measured_again(log):
    partition = log.create("t", 1, {"compression.type": "uncompressed", "max.message.bytes": "1000"}).partitions[0]
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes allows 1000"):
        partition.append(batch(bytes(2000), codec=records.GZIP), NOW)
    assert partition.end_offset == 0


def test_log_append_time_in_a_topic_that_packs(log):
    config = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    partition = log.create("t", 1, config).partitions[0]
    partition.append(batch(b"a", b"b", timestamp=5), NOW)
    assert [r.timestamp for r in consume(partition)] == [NOW, NOW]
    assert records.valid(content(partition.read(0, 10_000)))


def test_markers_of_transactions_are_not_packed(log):
    partition = log.create("t", 1, {"compression.type": "zstd"}).partitions[0]
    partition.append(batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), NOW)
    end = records.build_marker(7, 0, commit=True, coordinator_epoch=0, timestamp=NOW)
    partition.append(end, NOW, internal=True)
    heads = [head for _, head in records.headers(content(partition.read(0, 10_000)))]
    assert [(head.codec, head.control) for head in heads] == [(records.ZSTD, False), (0, True)]


def test_several_batches_of_which_some_are_packed(log):
    partition = log.create("t", 1, {"compression.type": "zstd"}).partitions[0]
    partition.append(batch(b"1") + batch(b"2", codec=records.ZSTD) + batch(b"3", codec=records.GZIP), NOW)
    assert values(consume(partition)) == [b"1", b"2", b"3"]
    assert [r.offset for r in consume(partition)] == [0, 1, 2]


def test_a_setting_that_changes_between_check_and_append(log):
    topic = log.create("t", 1)
    partition = topic.partitions[0]
    prepared = prepare(batch(b"v", key=None, codec=records.ZSTD), topic.config, NOW, partition.name)
    log.configure("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord, match="without key"):
        partition.append_prepared(prepared, NOW)
    assert partition.end_offset == 0


def test_a_topic_may_trust_its_producers(log):
    partition = log.create("t", 1, {"millstream.validation": "trust"}).partitions[0]
    partition.append(bytearray(packed(records.ZSTD, "garbage", NOW)), NOW)
    partition.append(bytearray(packed(records.ZSTD, "late", NOW)), NOW)
    assert partition.end_offset == 6
    with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms"):
        partition.append(batch(b"v", timestamp=NOW + 10**8, codec=records.ZSTD), NOW)
    with pytest.raises(InvalidRecord):  # what is not compressed costs little
        partition.append(bytearray(packed(0, "no records", NOW)), NOW)


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup.policy": "compact"},
        {"message.timestamp.before.max.ms": "1000000000"},
        {"max.decompressed.message.bytes": "1000"},
        {"compression.type": "gzip"},
    ],
)
def test_trust_ends_where_a_setting_is_about_eachrecord(log, config):
    partition = log.create("t", 1, {"millstream.validation": "trust", **config}).partitions[0]
    with pytest.raises(LogError):
        partition.append(bytearray(packed(records.ZSTD, "garbage", NOW)), NOW)


def test_an_empty_policy_keeps_everything(log):
    config = {"cleanup.policy": "", "retention.ms": "1", "internal.segment.bytes": "200"}
    partition = log.create("t", 1, config).partitions[0]
    for _ in range(10):
        partition.append(keyed((b"k", b"v" * 50)), NOW)
    for _ in range(20):
        log.maintain(NOW + 10**9)
    assert len(values(consume(partition))) == 10
    with pytest.raises(InvalidConfig, match=r"needs cleanup\.policy=delete"):
        log.create("ring", 1, {"cleanup.policy": "", "millstream.overload": "drop"})
