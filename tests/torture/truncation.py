"""The last segment is cut at every byte of its last batches: each whole batch before the cut is there, no other."""

import os
import shutil
from pathlib import Path
from random import Random

from millstream.log import Log, verify
from millstream.protocol import records
from tests.torture.loads import main


def rounds(folder: Path, count: int, chance: Random) -> None:
    for turn in range(1, count + 1):
        data = folder / str(turn)
        log = Log(data)
        partition = log.create("t", 1).partitions[0]
        ends = [0]
        for i in range(chance.randrange(2, 8)):
            messages = [(b"k%d" % i, bytes(chance.randrange(60)))] * chance.randrange(1, 4)
            partition.append(records.build(messages, 1, codec=chance.randrange(5)), 1)
            ends.append(partition.size)
        os.close(log._lock_fd)  # as a killed process leaves it
        path = partition.segments[-1].path
        for size in range(path.stat().st_size):
            copy = folder / "copy"
            shutil.copytree(data, copy)
            os.truncate(copy / path.relative_to(data), size)
            with Log(copy) as again:
                kept = again.topics["t"].partitions[0]
                assert kept.size == max(end for end in ends if end <= size), f"cut at byte {size} of {ends}"
                kept.append(records.build([(b"k", b"after")], 1), 1)
            assert verify(copy) == []
            shutil.rmtree(copy)
        print(f"round {turn}: cut at each of {path.stat().st_size} bytes", flush=True)
        shutil.rmtree(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds)
