"""The power is cut under load on a `commit` topic: what was acknowledged or seen is there on a disk that forgot the rest."""

import signal
import time
from pathlib import Path
from random import Random

from tests.torture.forgetful import Disk
from tests.torture.loads import Broker, Load, create, main, whole


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    data = folder / "0"
    data.mkdir()
    disk.keep(data)
    broker = Broker(disk.environment)
    broker.start(data)
    create(broker.address, "t", millstream_durability="commit", segment_bytes=str(1 << 20))
    load = Load(broker.address, "t")
    try:
        for turn in range(1, count + 1):
            load.wait(chance.randrange(50, 3000))
            time.sleep(chance.random() * 0.01)
            broker.end(signal.SIGKILL)
            acknowledged, seen = len(load.acknowledged), len(load.seen)
            after = folder / str(turn)
            disk.after_cut(disk.key(data), after)
            data = after
            disk.keep(data)
            broker.start(data)
            there = load.check()
            print(
                f"cut {turn}: {acknowledged} acknowledged, {seen} seen, {there} there, "
                f"started in {broker.recovery:.2f} s",
                flush=True,
            )
    finally:
        load.end()
        broker.end()
    assert not load.failed, load.failed[:3]
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds)
