"""Random bits of closed segments change on disk: never served, found by verify, and only their partition suffers."""

import os
from pathlib import Path
from random import Random

from millstream.log import Log, LogError, verify
from millstream.protocol import records
from tests.torture.loads import main


def rounds(folder: Path, count: int, chance: Random) -> None:
    with Log(folder / "data") as log:
        for topic in (log.create("bad", 1, {"internal.segment.bytes": "4000"}), log.create("good", 1)):
            for i in range(200):
                topic.partitions[0].append(records.build([(b"%d" % i, bytes(50))], 1), 1)
    paths = sorted((folder / "data" / "topics" / "bad" / "0").glob("*.log"))[:-1]
    for turn in range(1, count + 1):
        path = chance.choice(paths)
        before = path.read_bytes()
        data = bytearray(before)
        bits = chance.randrange(1, 4)
        for _ in range(bits):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        served = 0
        with Log(folder / "data") as log:
            for name in ("bad", "good"):
                partition = log.topics[name].partitions[0]
                offset = 0
                while offset < 200:
                    try:
                        read = partition.read(offset, 3000)
                    except LogError:
                        assert name == "bad"
                        offset += 1
                        continue
                    for piece in read.slices:
                        content = os.pread(piece.file, piece.size, piece.position)
                        for position, head in records.headers(content):
                            batch = content[position : position + head.size]
                            assert records.valid(batch), "a damaged batch was served"
                            for record in records.records(batch):
                                assert record.key == b"%d" % record.offset
                                served += 1
                    offset = read.next_offset
        if bytes(data) != before:
            assert [d.file for d in verify(folder / "data")][:1] == [path], "verify does not find it"
        path.write_bytes(before)
        assert verify(folder / "data") == []
        print(f"round {turn}: {bits} bits of {path.name}, {served} of 400 records served", flush=True)


if __name__ == "__main__":
    main(__doc__ or "", rounds, 50)
