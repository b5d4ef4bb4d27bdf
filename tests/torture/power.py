"""The power is cut under load on a `commit` topic: what was acknowledged or seen is there on a disk that forgot the rest."""

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

    def cut(broker: Broker, load: Load, turn: int) -> Path:
        nonlocal data
        time.sleep(chance.random() * 0.01)
        broker.end(signal.SIGKILL)
        data = disk.cut(data, folder / str(turn))
        return data

    config = {"millstream_durability": "commit", "segment_bytes": str(1 << 20)}
    under_load(Broker(disk.environment), data, cut, count, chance, 3000, **config)


if __name__ == "__main__":
    main(__doc__ or "", rounds)
