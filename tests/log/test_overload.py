"""The ring of a `drop` topic: bounded at every append, loss counted, readers go on."""

import pytest

from millstream.log import InvalidConfig, OffsetOutOfRange
from tests.log.logs import NOW, batch, consume, content, crash, fill, maintain, open_log, values

RING = {
    "millstream.overload": "drop",
    "retention.bytes": "8000",
    "retention.ms": "-1",
    "max.message.bytes": "800",
    "internal.segment.bytes": "100000",
}


@pytest.fixture
def log(tmp_path):
    with open_log(tmp_path / "log") as log:
        yield log


def test_the_bound_holds_at_every_append(log):
    topic = log.create("t", 1, RING)
    partition = topic.partitions[0]
    sent = []
    for _ in range(500):
        sent += fill(partition, 1)
        on_disk = sum(path.stat().st_size for path in partition.folder.glob("*.log"))
        assert partition.size == on_disk <= 8000 + 1000
    assert partition.size >= 8000
    assert values(consume(partition)) == sent[partition.start_offset :]
    counters = topic.overload
    assert counters.dropped_records == partition.start_offset > 300
    assert counters.dropped_bytes == partition.start_offset * (len(batch(sent[0], key=b"key")))
    with pytest.raises(OffsetOutOfRange):
        partition.read(0, 100)


def test_who_reads_goes_on_with_what_he_holds(log):
    partition = log.create("t", 1, RING).partitions[0]
    sent = fill(partition, 20)
    read = partition.read(0, 10**6)
    fill(partition, 300)
    assert partition.start_offset > 20
    data = content(read)
    assert sent[0] in data


def test_the_count_survives_a_restart(tmp_path):
    log = open_log(tmp_path / "log")
    topic = log.create("t", 2, RING)
    for partition in topic.partitions:
        fill(partition, 300)
    dropped = topic.overload.dropped_records
    log.close()
    with open_log(tmp_path / "log") as log:
        topic = log.topics["t"]
        assert topic.overload.dropped_records == dropped == sum(p.start_offset for p in topic.partitions)


def test_after_a_crash_it_begins_where_the_first_segment_does(tmp_path):
    log = open_log(tmp_path / "log")
    partition = log.create("t", 1, RING).partitions[0]
    sent = fill(partition, 300)
    start = partition.start_offset
    crash(log)
    with open_log(tmp_path / "log") as log:
        partition = log.topics["t"].partitions[0]
        assert partition.start_offset == start and values(consume(partition)) == sent[start:]


def test_a_worker_that_is_busy_does_not_hold_appends_up(log):
    partition = log.create("t", 1, RING).partitions[0]
    with partition._work:
        fill(partition, 300)
        assert partition.start_offset == 0
    fill(partition, 1)
    assert partition.start_offset > 0 and partition.size <= 9000


def test_a_ring_by_time(log):
    config = {**RING, "retention.bytes": "-1", "retention.ms": "1000", "internal.segment.bytes": "500"}
    partition = log.create("t", 1, config).partitions[0]
    for second in range(10):
        for _ in range(20):
            partition.append(batch(bytes(50), timestamp=NOW + second * 1000), NOW + second * 1000)
    assert 7 * 20 <= partition.start_offset <= 8 * 20 + 5


def test_only_buffer_keeps_until_maintenance(log):
    partition = log.create(
        "t", 1, {**RING, "millstream.overload": "buffer", "internal.segment.bytes": "1000"}
    ).partitions[0]
    fill(partition, 300)
    assert partition.start_offset == 0
    maintain(log)
    assert partition.start_offset > 0 and partition.topic.overload.dropped_records == 0


def test_a_compacted_topic_is_no_ring(log):
    with pytest.raises(InvalidConfig, match="delete"):
        log.create("t", 1, {**RING, "cleanup.policy": "compact"})


@pytest.mark.parametrize("size", [50, 333])
def test_bytes_from(log, size):
    partition = log.create("t", 1, {"internal.segment.bytes": "5000", "index.interval.bytes": "100"}).partitions[0]
    fill(partition, 100, size=size)
    for offset in range(0, 101, 7):
        exact = partition.size * (100 - offset) // 100
        assert abs(partition.bytes_from(offset) - exact) <= 2 * (size + 100)
    assert partition.bytes_from(100) == 0 and partition.bytes_from(0) == partition.size
