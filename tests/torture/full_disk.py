"""A file system of 8 MB runs full under load: readers go on, and producers do when there is room; nothing is lost."""

import contextlib
import subprocess
import time
from pathlib import Path
from random import Random

from tests.mounts import mount
from tests.torture.loads import Broker, Load, create, main, whole


def rounds(folder: Path, count: int, chance: Random) -> None:
    small = folder / "small"
    small.mkdir()
    if why := mount(small, "size=8m"):
        raise SystemExit(why)
    try:
        _rounds(small, count)
    finally:
        subprocess.run(["umount", small], check=True)


def _rounds(small: Path, count: int) -> None:
    broker = Broker()
    ballast = small / "ballast"
    broker.start(small / "data")
    create(broker.address, "t", segment_bytes=str(1 << 20))
    load = Load(broker.address, "t")
    try:
        for turn in range(1, count + 1):
            load.wait(100)
            with contextlib.suppress(OSError):  # as much as there is room for
                ballast.write_bytes(bytes(8 << 20))
            time.sleep(0.3)
            before = len(load.acknowledged)
            there = load.check()
            ballast.unlink()
            load.wait(100)
            print(f"round {turn}: full after {before} acknowledged, {there} readable, then it went on", flush=True)
    finally:
        load.end()
        broker.end()
    assert not load.failed, load.failed[:3]
    broker.start(small / "data")
    load.check()
    broker.end()
    whole(small / "data")


if __name__ == "__main__":
    main(__doc__ or "", rounds, 2)
