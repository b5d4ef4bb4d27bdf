"""SIGKILL under load, durability `os`: what was acknowledged or seen is there, once and in order."""

import signal
import time
from pathlib import Path
from random import Random

from tests.torture.loads import Broker, Load, create, main, whole


def rounds(folder: Path, count: int, chance: Random) -> None:
    data = folder / "data"
    broker = Broker()
    broker.start(data)
    create(broker.address, "t", segment_bytes=str(1 << 20))
    load = Load(broker.address, "t")
    try:
        for turn in range(1, count + 1):
            load.wait(chance.randrange(50, 5000))
            time.sleep(chance.random() * 0.01)
            broker.end(signal.SIGKILL)
            broker.start(data)
            acknowledged = len(load.acknowledged)
            there = load.check()
            print(
                f"kill {turn}: {acknowledged} acknowledged, {there} there, started in {broker.recovery:.2f} s",
                flush=True,
            )
    finally:
        load.end()
        broker.end()
    assert not load.failed, load.failed[:3]
    whole(data)


if __name__ == "__main__":
    main(__doc__ or "", rounds)
