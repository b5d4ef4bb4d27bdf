"""Random bits of closed segments, here and in an archive, and of their indexes change: never served, nothing else is lost.

`verify` finds each, only the partition suffers, and an offset is served as it was written or refused: none is left out.
"""

import os
from pathlib import Path
from random import Random

from millstream.log import Log, LogError, NotHere, Partition, verify
from millstream.protocol import records
from tests.torture.loads import main

RECORDS = 200


def fill(log: Log, folder: Path) -> None:
    """Three topics: `bad` with its segments here, `far` with them in an archive, and `good`."""
    small = {"internal.segment.bytes": "4000"}
    away = {
        **small,
        "millstream.archive": f"file://{folder}/archive",
        "local.retention.bytes": "0",
        "retention.ms": "-1",
    }
    for topic in (log.create("bad", 1, small), log.create("far", 1, away), log.create("good", 1)):
        for i in range(RECORDS):
            topic.partitions[0].append(records.build([(b"%d" % i, bytes(50))], 1), 1)
    while log.archive(1) or log.maintain(1):
        pass


def read(partition: Partition, offset: int) -> tuple[list[int], int]:
    """Offsets that a read from `offset` on serves, and where the next one begins; LogError when it is refused."""
    while True:
        try:
            found = partition.read(offset, 3000)
            break
        except NotHere as missing:
            partition.fetch(missing)
    served = []
    for piece in found.slices:
        content = os.pread(piece.file, piece.size, piece.position)
        for position, head in records.headers(content):
            batch = content[position : position + head.size]
            assert records.valid(batch), "a damaged batch was served"
            for record in records.records(batch):
                assert record.key == b"%d" % record.offset, "a record was served under another one's offset"
                if record.offset >= offset:
                    served.append(record.offset)
    return served, found.next_offset


def rounds(folder: Path, count: int, chance: Random) -> None:
    with Log(folder / "data") as log:
        fill(log, folder)
    here = folder / "data" / "topics"
    paths = {
        "bad": [p for p in (here / "bad" / "0").iterdir() if p.suffix in (".log", ".index")],
        "far": [p for p in folder.rglob("*") if p.suffix in (".log", ".index") and "far" in str(p)],
    }
    for name, found in paths.items():
        last = max(p.name for p in found)[:20]  # the active segment, whose torn end would be cut
        paths[name] = sorted(p for p in found if not p.name.startswith(last))
    for turn in range(1, count + 1):
        topic = chance.choice(sorted(paths))
        path = chance.choice(paths[topic])
        before = path.read_bytes()
        data = bytearray(before)
        bits = chance.randrange(1, 4)
        for _ in range(bits):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        found = verify(folder / "data")
        assert data == before or [str(d.file).endswith(str(path)) for d in found][:1] == [True], (
            "verify does not find it"
        )
        refused = 0
        with Log(folder / "data") as log:
            for name in ("bad", "far", "good"):
                partition, offset = log.topics[name].partitions[0], 0
                while offset < RECORDS:
                    try:
                        served, following = read(partition, offset)
                    except LogError:
                        assert name == topic and path.suffix == ".log", f"{name} suffers as well"
                        refused, offset = refused + 1, offset + 1
                        continue
                    assert served == list(range(offset, following)), "offsets are left out without a word"
                    offset = following
        assert data == before or path.suffix != ".log" or refused, "damage was read over"
        path.write_bytes(before)
        assert verify(folder / "data") == []
        print(
            f"round {turn}: {bits} bits of {topic}'s {path.name}, {refused} of {3 * RECORDS} records refused",
            flush=True,
        )


if __name__ == "__main__":
    main(__doc__ or "", rounds, 50)
