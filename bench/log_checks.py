"""What looking into compressed batches costs: `python bench/log_checks.py [folder]`.

The same batch is appended to a topic that checks and to one that trusts (`millstream.validation`), in turns; medians of the
CPU time of several turns, so that other work on the machine matters less. Sizes are of what the batches unpack to.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from millstream.log import Log, Partition
from millstream.protocol import records

NOW = int(time.time() * 1000)
TURNS = 9
# Bytes of records that one turn appends, per topic.
TURN_BYTES = 8_000_000
# Records of this size in batches of so many: a Java producer's 16 kB, and librdkafka's up to 1 MB.
SHAPES = ((100, 150), (100, 5_000), (1_000, 16), (1_000, 900))


def rows(size: int, count: int) -> list[tuple[bytes, bytes]]:
    """Records as people send them: JSON that resembles its neighbours."""
    found = []
    for i in range(count):
        text = b'{"id": %d, "user": "user-%d", "amount": %d.%02d, "note": "' % (i, i * 7919 % 9973, i % 977, i % 100)
        fill = b" ".join(b"word%d" % (i * k % 997) for k in range(size // 8))
        found.append((b"key-%d" % (i % 1000), (text + fill)[: size - 2] + b'"}'))
    return found


def turn(partition: Partition, data: bytearray, times: int) -> float:
    """CPU seconds of appending a batch so many times."""
    copies = [data[:] for _ in range(times)]
    start = time.process_time()
    for copy in copies:
        partition.append(copy, NOW)
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    folder = Path(tempfile.mkdtemp(prefix="log_checks-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    print(f"{'batches':34}{'trust':>12}{'check':>12}{'more':>12}{'more':>12}{'ratio':>8}")
    print(f"{'':34}{'ms/MB':>12}{'ms/MB':>12}{'ms/MB':>12}{'ns/record':>12}")
    try:
        with Log(folder) as log:
            config = {"max.message.bytes": "10000000", "retention.bytes": "1", "segment.bytes": "64000000"}
            for size, count in SHAPES:
                messages = rows(size, count)
                unpacked = len(records.build(messages, NOW))
                times = max(1, TURN_BYTES // unpacked)
                megabytes = times * unpacked / 1e6
                for codec, name in enumerate(records.CODECS):
                    data = records.build(messages, NOW, codec=codec)
                    sides = [
                        log.create(
                            f"{how}-{name}-{size}-{count}", 1, {**config, "millstream.validation": how}
                        ).partitions[0]
                        for how in ("trust", "check")
                    ]
                    seconds = [[turn(side, data, times) for side in sides] for _ in range(TURNS)]
                    log.maintain(NOW + 10**9)
                    trust, check = (statistics.median(each) * 1000 / megabytes for each in zip(*seconds, strict=True))
                    nanoseconds = (check - trust) * megabytes * 1e6 / (times * count)
                    what = f"{name}, {unpacked / 1000:.0f} kB of {size} B"
                    numbers = f"{trust:12.3f}{check:12.3f}{check - trust:12.3f}{nanoseconds:12.0f}"
                    print(f"{what:34}{numbers}{check / trust:8.2f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
