"""The power is cut at each of the places where the coordinators name a crash that may hurt, on topics of durability `commit`.

A round passes once over all places (`millstream/broker/failpoints.py`): the broker kills itself at some pass over one, the disk
keeps what was synced, in every second round anything of the rest as well, and everything is as `outage` and `transactions`
promise: no committed offset goes back, each transaction is there whole or not at all.
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

# A place is passed so often before the broker dies there, at most; epochs are given seldom.
PASSES = {failpoints.EPOCH_STORED: 4}


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    data = folder / "0"
    data.mkdir()
    disk.keep(data)
    broker = Broker(disk.environment).start(data)
    for topic in ("in", "out", "copied", "newer"):
        create(broker.address, topic, PARTITIONS, millstream_durability="commit")
    world, newer = World(broker.address, chance), Newer(broker.address, Random(chance.random()))
    turn = 0
    try:
        for number in range(1, count + 1):
            for point in failpoints.ALL:
                turn += 1
                passes = chance.randint(1, PASSES.get(point, 60))
                broker.end()
                broker.environment = {**disk.environment, VARIABLE: f"{point}:{passes}"}
                broker.start()
                stop = threading.Event()
                threads = world.work(stop, newer)
                broker.died(60)
                after = folder / str(turn)
                disk.after_cut(disk.key(data), after, None if number % 2 else chance, data)
                data = after
                disk.keep(data)
                broker.environment = disk.environment
                broker.start(data)
                time.sleep(0.3 + chance.random() / 2)
                stop.set()
                for thread in threads:
                    thread.join()
                world.end()
                newer.connect()
                print(f"{number}: {point} ({passes}): {world.check()}, {newer.check()}", flush=True)
    finally:
        broker.end()
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds, 2)
