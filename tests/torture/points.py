"""The power is cut at each of the places where the coordinators name a crash that may hurt, on topics of durability `commit`.

The rounds go through the places (`millstream/broker/failpoints.py`): the broker kills itself at some pass over one, the disk
keeps what was synced, sometimes anything of the rest as well, and everything is as `outage` and `transactions` promise: no
committed offset goes back, each transaction is there whole or not at all.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

from millstream.broker import failpoints
from millstream.settings.failpoints import VARIABLE
from tests.torture.forgetful import Disk
from tests.torture.loads import Broker, create, main, whole
from tests.torture.newer import Newer
from tests.torture.transactions import PARTITIONS, World

NEWER = 3  # producers of version 2
# A place is passed so often before the broker dies there, at most; epochs are given seldom.
PASSES = {failpoints.EPOCH_STORED: 4}


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    data = folder / "0"
    data.mkdir()
    disk.keep(data)
    broker = Broker(disk.environment).start(data)
    for topic in ("in", "out", "copied", *(f"newer-{number}" for number in range(NEWER))):
        create(broker.address, topic, PARTITIONS, millstream_durability="commit")
    world = World(broker.address, chance)
    newer = [Newer(broker.address, number, Random(chance.random())) for number in range(NEWER)]
    try:
        for turn in range(1, count + 1):
            point = failpoints.ALL[(turn - 1) % len(failpoints.ALL)]
            passes, forgets = chance.randint(1, PASSES.get(point, 60)), chance.random() < 0.5
            broker.end()
            broker.environment = {**disk.environment, VARIABLE: f"{point}:{passes}"}
            broker.start()
            stop = threading.Event()
            threads = world.work(stop, *newer)
            broker.died(60)
            data = disk.cut(data, folder / str(turn), None if forgets else chance)
            broker.environment = disk.environment
            broker.start(data)
            time.sleep(0.3 + chance.random() / 2)
            stop.set()
            for thread in threads:
                thread.join()
            world.end()
            for each in newer:
                each.connect()
            print(
                f"cut {turn} ({point}, {passes}), {'all' if forgets else 'some'} of what was not synced is lost: "
                f"{world.check()}, {', '.join(each.check() for each in newer)}",
                flush=True,
            )
    finally:
        broker.end()
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds, len(failpoints.ALL))
