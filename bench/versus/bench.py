"""What all rows share: the two brokers, the clients, how much is to be done, and where results go."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from versus.brokers import Kafka, Millstream, Side, in_turn
from versus.clients import Java, Librdkafka
from versus.measure import Found

BRIEF = 0.25
"""Below this size only the cases that say most are measured."""
CASE_S = 25.0
MORE = 3
"""Short runs scatter most: a case is repeated for so many seconds, at most so many times as often as was asked for."""
WARM_UP = 200_000
"""Records of 1 KiB that go in and out of each broker, twice, before anything counts."""


class Bench:
    """One run of the benchmark in a scratch folder.

    results: where every value is written to as soon as it is known. only: a part of `row: case`, to run just those that
    have it. minutes: once so many have gone by, a case is run once and not repeated, so that none is lost.
    """

    def __init__(
        self, folder: Path, size: float, repeats: int, results: Path, only: str = "", minutes: float = 0.0
    ) -> None:
        self.folder = folder
        self.size = size
        self.repeats = repeats
        self.results = results
        self.only = only
        self.brief = size < BRIEF
        self.found = Found()
        self.java = Java(folder)
        self.librdkafka = Librdkafka()
        self.sides: list[Side] = []
        self._deadline = time.monotonic() + minutes * 60 if minutes else 0.0
        self._topics = 0

    def start(self) -> None:
        """Start both brokers."""
        self.sides = self.fresh("main")
        for side in self.sides:
            side.start()
        for _ in range(2):
            for side in self.sides:
                self.warm_up(side)

    def warm_up(self, side: Side) -> None:
        """Have everything loaded, and the JVM's code compiled."""
        with side.topic(self.name("warm-up")) as topic:
            self.librdkafka.produce(side, topic, WARM_UP, 1024, {"batch.size": "16384"})
            self.librdkafka.consume(side, topic, WARM_UP, {})
        with side.topic(self.name("warm-up")) as topic:
            self.librdkafka.produce(side, topic, WARM_UP // 20, 100, {"batch.num.messages": "1", "linger.ms": "0"})

    def fresh(self, name: str) -> list[Side]:
        """Two brokers with empty folders, not started."""
        made: list[Side] = []
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

    # ---- rows and cases

    def row(self, row: str, run: Callable[[Bench], None]) -> None:
        """Run a row. When it fails outside of its cases this is noted, and the others go on."""
        try:
            run(self)
        except Exception as error:
            traceback.print_exc()
            for side in self.sides:
                self.found.failed[row, "the row itself", side.name] = str(error) or type(error).__name__
            self.found.save(self.results)

    def wanted(self, row: str, case: str) -> bool:
        """Whether a case is to be run."""
        return self.only in f"{row}: {case}"

    def rounds(self) -> int:
        """How often a case is run on each side."""
        return 1 if self._deadline and time.monotonic() > self._deadline else self.repeats

    def each(
        self, row: str, case: str, run: Callable[[Side], None], warm_up: Callable[[Side], object] | None = None
    ) -> None:
        """Run a case on both sides in turn. warm_up: done before on each, and not counted."""
        if not self.wanted(row, case):
            return
        if warm_up is not None:
            for side in self.sides:
                if (row, case, side.name) not in self.found.failed:
                    with self.attempt(row, case, side):
                        warm_up(side)
        began = time.monotonic()
        rounds = self.rounds()
        for repeat in range(rounds if rounds == 1 else rounds * MORE):
            if repeat >= rounds and time.monotonic() - began > CASE_S:
                break
            for side in in_turn(self.sides, repeat):
                # Once it has failed it would only take the time of the others.
                if (row, case, side.name) not in self.found.failed:
                    with self.attempt(row, case, side):
                        run(side)

    @contextmanager
    def attempt(self, row: str, case: str, side: Side) -> Iterator[None]:
        """Run a block; when it fails this is noted in the case's row, and the others go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.found.failed[row, case, side.name] = str(error) or type(error).__name__
            self.found.save(self.results)
            print(f"{row}: {case}: {side.name}: FAILED: {error}", file=sys.stderr, flush=True)
            side.revive()

    def add(self, row: str, case: str, side: Side, measures: Mapping[str, float]) -> None:
        """Note what one run of one side gave, and say so on stderr."""
        self.found.add(row, case, side.name, measures)
        self.found.save(self.results)
        shown = ", ".join(f"{value:.2f} {name}" for name, value in measures.items())
        print(f"{row}: {case}: {side.name}: {shown}", file=sys.stderr, flush=True)
