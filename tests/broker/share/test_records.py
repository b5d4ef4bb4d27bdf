"""The records of share partitions: snapshots after so many updates, updates of another snapshot, removal."""

from __future__ import annotations

from millstream.broker.internal_topics import PREFIX, Replayed, pack
from millstream.broker.share import records
from millstream.broker.share.partition import Ack, Acknowledgement, Limits, SharePartition
from millstream.broker.share.runs import Run, State

WHERE = records.Where("g", b"t" * 16, 3)
LIMITS = Limits()


def packed(write):
    key, value, version = write
    data = None if value is None else memoryview(pack(version, value, version))
    name = memoryview(pack(key.API_KEY, key, 0))
    return Replayed(PREFIX.unpack_from(name)[0], name[2:], version, None if data is None else data[2:], -1)


def test_a_snapshot_follows_so_many_updates_and_says_it_all():
    partition, stored = SharePartition(0), records.Stored(0)
    log = [packed(records.snapshot_write(WHERE, stored, 5))]
    stored.snapshot_epoch = 1
    last = 2 * records.UPDATES_PER_SNAPSHOT
    partition.make(partition.acquire("m", [(0, last)], last + 1, LIMITS, 0))
    for offset in range(1, last + 1):  # the first record is never done
        change = partition.acknowledge("m", [Acknowledgement(offset, offset, [Ack.ACCEPT])], LIMITS, 0)
        write, stored = records.next_write(WHERE, stored, change.update, offset)
        partition.make(change)
        log.append(packed(write))
    kinds = [record.type for record in log]
    assert kinds.count(records.SNAPSHOT) == 3 and kinds[-1] == records.SNAPSHOT
    for begin in (0, records.UPDATES_PER_SNAPSHOT, last):  # all of it, or from a snapshot on
        known = {}
        for record in log[begin:]:
            records.read(record, known)
        assert known[WHERE].batches == [Run(1, last, State.ACKNOWLEDGED, 1)]
        assert (known[WHERE].snapshot_epoch, known[WHERE].complete) == (3, last)
    assert known[WHERE].partition().next_offset == 0


def test_an_update_without_its_snapshot_is_left_out():
    stored = records.Stored(7, snapshot_epoch=4)
    partition = stored.partition()
    partition.make(partition.acquire("m", [(7, 9)], 3, LIMITS, 0))
    change = partition.acknowledge("m", [Acknowledgement(7, 9, [Ack.REJECT])], LIMITS, 0)
    update = packed(records.update_write(WHERE, stored, change.update))
    known = {}
    records.read(update, known)
    assert known == {}
    records.read(packed(records.snapshot_write(WHERE, stored, 0)), known)  # epoch 5
    records.read(update, known)
    assert known[WHERE].start == 7
    records.read(packed(records.removal(WHERE)), known)
    assert known == {}
