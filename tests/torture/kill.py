"""SIGKILL under load, durability `os`: what was acknowledged or seen is there, once and in order."""

import signal
import time
from pathlib import Path
from random import Random

from tests.torture.loads import Broker, Load, main
from tests.torture.rounds import under_load


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"

    def kill(broker: Broker, load: Load, turn: int) -> Path:
        time.sleep(chance.random() * 0.01)
        broker.end(signal.SIGKILL)
        return data

    under_load(Broker(), data, kill, count, chance, 5000, segment_bytes=str(1 << 20))


if __name__ == "__main__":
    main(__doc__ or "", rounds)
