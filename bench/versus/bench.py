"""What all rows share: the two brokers, the clients, how much is to be done, and where results go."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from versus.brokers import Kafka, Millstream, Side
from versus.clients import Java, Librdkafka
from versus.measure import Found

BRIEF = 0.25
"""Below this size only the cases that say most are measured."""
WARM_UP = 200_000
"""Records of 1 KiB that go in and out of each broker, twice, before anything counts."""


class Bench:
    """One run of the benchmark in a scratch folder."""

    def __init__(self, folder: Path, size: float, repeats: int) -> None:
        self.folder = folder
        self.size = size
        self.repeats = repeats
        self.brief = size < BRIEF
        self.found = Found()
        self.java = Java(folder)
        self.librdkafka = Librdkafka()
        self.sides: list[Side] = []
        self._topics = 0

    def start(self) -> None:
        """Start both brokers."""
        self.sides = self.fresh("main")
        for side in self.sides:
            side.start()
        for _ in range(2):
            for side in self.sides:
                self._warm_up(side)

    def _warm_up(self, side: Side) -> None:
        """Have everything loaded, and the JVM's code compiled."""
        with side.topic(self.name("warm-up")) as topic:
            self.librdkafka.produce(side, topic, WARM_UP, 1024, {"batch.size": "16384"})
            self.librdkafka.consume(side, topic, WARM_UP, {})
        with side.topic(self.name("warm-up")) as topic:
            self.librdkafka.produce(side, topic, WARM_UP // 20, 100, {"batch.num.messages": "1", "linger.ms": "0"})

    def fresh(self, name: str) -> list[Side]:
        """Two brokers with empty folders, not started."""
        made = []
        for kind in (Millstream, Kafka):
            folder = self.folder / f"{name}-{kind.name.lower().replace(' ', '-')}"
            folder.mkdir()
            made.append(kind(folder))
        return made

    def stop(self) -> None:
        """Stop both brokers."""
        for side in self.sides:
            side.stop()

    def client(self, name: str) -> Java | Librdkafka:
        """The clients of a name."""
        return self.java if name == self.java.name else self.librdkafka

    def name(self, row: str) -> str:
        """A topic's name that was not used yet."""
        self._topics += 1
        return f"{row}-{self._topics}"

    def add(self, row: str, case: str, side: Side, measures: Mapping[str, float]) -> None:
        """Note what one run of one side gave, and say so on stderr."""
        self.found.add(row, case, side.name, measures)
        shown = ", ".join(f"{value:.2f} {name}" for name, value in measures.items())
        print(f"{row}: {case}: {side.name}: {shown}", file=sys.stderr, flush=True)
