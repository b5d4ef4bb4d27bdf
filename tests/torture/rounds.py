"""What a round is, whatever the fault: load, the fault, a broker that starts again, and the check of what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.torture.loads import Broker, Load, create, whole

Fault = Callable[[Broker, Load, int], Path]
"""Does its harm and ends the broker; the folder in which it is to start again. Given the number of the round, from 1."""


def under_load(broker: Broker, data: Path, fault: Fault, count: int, chance: Random, most: int, **config: str) -> None:
    """So many rounds over the folder `data`, each after up to `most` acknowledged messages; then nothing is damaged."""
    broker.start(data)
    create(broker.address, "t", **config)
    load = Load(broker.address, "t")
    try:
        for turn in range(1, count + 1):
            load.wait(chance.randrange(50, most))
            data = fault(broker, load, turn)
            acknowledged, seen = len(load.acknowledged), len(load.seen)
            broker.start(data)
            there = load.check()
            print(
                f"round {turn}: {acknowledged} acknowledged, {seen} seen, {there} there, "
                f"started in {broker.recovery:.2f} s",
                flush=True,
            )
    finally:
        load.end()
        broker.end()
    assert not load.failed, load.failed[:3]
    whole(data)
