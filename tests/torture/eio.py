"""fsync fails: nothing more is acknowledged by the partition, and after a restart everything acknowledged is there."""

import signal
import time
from pathlib import Path
from random import Random

from tests.torture.forgetful import Disk
from tests.torture.loads import Broker, Load, main
from tests.torture.rounds import under_load


def rounds(folder: Path, count: int, chance: Random) -> None:
    disk = Disk(folder / "disk")
    data = folder / "0"
    data.mkdir()
    disk.keep(data)

    def fail(broker: Broker, load: Load, turn: int) -> Path:
        nonlocal data
        disk.fail(True)
        time.sleep(0.3)  # what was under way is answered
        before = len(load.acknowledged)
        time.sleep(0.5)
        assert len(load.acknowledged) == before, "something was acknowledged although no sync succeeded"
        disk.fail(False)
        time.sleep(0.5)
        assert len(load.acknowledged) == before, "a sync was tried again after it had failed"
        broker.end(signal.SIGKILL)
        data = disk.cut(data, folder / str(turn))
        return data

    under_load(Broker(disk.environment), data, fail, count, chance, 2000, millstream_durability="commit")


if __name__ == "__main__":
    main(__doc__ or "", rounds, 3)
