"""What appending to and reading from the log costs: `python bench/log_append.py [folder]`.

One partition, no fsync, one thread; the best of five runs each. Times include everything that the storage engine does:
parsing, checksum, producer state, the write, indexes. On a machine that is busy otherwise look at the CPU time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.log import Log, Partition
from millstream.protocol import records

NOW = int(time.time() * 1000)
VALUE = os.urandom(100)
RUNS = 5


def batch(count: int, **options: int) -> bytearray:
    """A batch of `count` records of 100 bytes."""
    return records.build([(None, VALUE)] * count, NOW, **options)


class Result(NamedTuple):
    """Shortest time and shortest CPU time of a few runs, in seconds, and the bytes of one run."""

    wall: float
    cpu: float
    size: int


def best(action: Callable[[], int]) -> Result:
    """Run `action`, which returns its bytes, a few times."""
    wall = cpu = float("inf")
    size = 0
    for _ in range(RUNS):
        start, used = time.perf_counter(), time.process_time()
        size = action()
        wall, cpu = min(wall, time.perf_counter() - start), min(cpu, time.process_time() - used)
    return Result(wall, cpu, size)


def appends(partition: Partition, data: bytearray, times: int) -> Result:
    """Append the same batch many times."""

    def action() -> int:
        append = partition.append
        for _ in range(times):
            append(data, NOW)
        return times * len(data)

    return best(action)


def fresh(partition: Partition, data: bytearray, times: int) -> Result:
    """Append copies of a batch, for topics whose batches may not be appended again as they were stamped."""

    def action() -> int:
        append = partition.append
        for _ in range(times):
            append(data[:], NOW)
        return times * len(data)

    return best(action)


def idempotent(partition: Partition, times: int) -> Result:
    """Append batches of one record with the sequence numbers of one producer."""
    sequence = 0
    prepared = [
        [batch(1, producer_id=7, producer_epoch=0, base_sequence=i + run * times) for i in range(times)]
        for run in range(RUNS)
    ]

    def action() -> int:
        nonlocal sequence
        append = partition.append
        size = 0
        for data in prepared.pop(0):
            append(data, NOW)
            size += len(data)
        return size

    return best(action)


def reads(partition: Partition, max_bytes: int) -> Result:
    """Read the whole partition in pieces, without sending the bytes."""

    def action() -> int:
        offset, size = partition.start_offset, 0
        while offset < partition.end_offset:
            found = partition.read(offset, max_bytes)
            for piece in found.slices:
                size += piece.size
                piece.release()
            offset = found.next_offset
        return size

    return best(action)


def tail(partition: Partition, data: bytearray, times: int) -> Result:
    """Append one batch and read it at once, as a waiting consumer does."""

    def action() -> int:
        offset = partition.end_offset
        for _ in range(times):
            partition.append(data, NOW)
            found = partition.read(offset, 1 << 20)
            found.slices[0].release()
            offset = found.next_offset
        return times * len(data)

    return best(action)


def main() -> None:
    """Print the table."""
    folder = Path(tempfile.mkdtemp(prefix="log_append-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    rows: list[tuple[str, int, Result]] = []
    try:
        with Log(folder) as log:

            def partition(name: str, **config: str) -> Partition:
                return log.create(name, 1, {k.replace("_", "."): v for k, v in config.items()}).partitions[0]

            rows.append(("append, 1 record of 100 B", 50_000, appends(partition("one"), batch(1), 50_000)))
            rows.append(("append, 1 record, idempotent", 20_000, idempotent(partition("idempotent"), 20_000)))
            stamped = partition("stamped", message_timestamp_type="LogAppendTime")
            rows.append(("append, 1 record, LogAppendTime", 50_000, fresh(stamped, batch(1), 50_000)))
            compacted = partition("compacted", cleanup_policy="compact")
            keyed = records.build([(b"key", VALUE)], NOW)
            rows.append(("append, 1 record, compacted topic", 50_000, appends(compacted, keyed, 50_000)))
            rows.append(("append, 16 kB batches", 5_000, appends(partition("middle"), batch(148), 5_000)))
            large = partition("large")
            rows.append(("append, 100 kB batches", 1_000, appends(large, batch(920), 1_000)))
            rows.append(("append + read of 1 record at the end", 20_000, tail(partition("tail"), batch(1), 20_000)))
            rows.append(("read of 1 MiB, just written", large.size >> 20, reads(large, 1 << 20)))
        with Log(folder) as log:
            large, small = log.topics["large"].partitions[0], log.topics["middle"].partitions[0]
            rows.append(("read of 1 MiB from disk, verified, 100 kB batches", large.size >> 20, reads(large, 1 << 20)))
            rows.append(("read of 1 MiB from disk, verified, 16 kB batches", small.size >> 20, reads(small, 1 << 20)))
    finally:
        shutil.rmtree(folder)
    print(f"{'':52}{'us':>10}{'CPU us':>10}{'MB/s':>10}{'MB/CPU s':>10}")
    for name, times, (wall, cpu, size) in rows:
        print(
            f"{name:52}{wall / times * 1e6:10.2f}{cpu / times * 1e6:10.2f}{size / wall / 1e6:10.0f}{size / cpu / 1e6:10.0f}"
        )


if __name__ == "__main__":
    main()
