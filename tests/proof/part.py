"""A part of the proof: what it runs, in which folder, with which log, and the results that it gives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream.settings import Settings
from tests.broker.serving import Process

ROOT = Path(__file__).parent.parent.parent
TRACE = "Traceback (most recent call last)"
END_S = 10.0  # for a command that is told to end because its time is over


class Skip(Exception):
    """The part cannot run here; the text says why and what to do."""


@dataclass
class Results:
    """What the tests of a part came to: names of those that passed and were skipped, reasons of those that failed."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    note: str = ""  # a measured fact for the summary's line

    def check(self, name: str, good: bool, why: str = "") -> None:
        """Note a test."""
        if good:
            self.passed.append(name)
        else:
            self.failed[name] = why


@dataclass
class Run:
    """One run of a part: how much of it, a folder for its files, and the log of everything that it says."""

    size: int
    folder: Path
    log: Path

    @property
    def tools(self) -> Path:
        """The folder where installed tools stay between runs."""
        return Settings.load().cache / "proof"

    def say(self, text: str) -> None:
        """Write to the log."""
        with self.log.open("a") as file:
            file.write(text.rstrip("\n") + "\n")

    def command(
        self, words: Sequence[str | Path], timeout_s: float, *, folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:  # fmt: skip
        """Run a command to its end; returns its code (-1: it took too long, and was ended) and what it printed."""
        self.say(f"$ {' '.join(map(str, words))}")
        with self.log.open("a+") as log:
            log.seek(0, os.SEEK_END)
            start = log.tell()
            process = subprocess.Popen(
                [str(word) for word in words], cwd=folder or ROOT, env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                code = -1
                self.say(f"ended after {timeout_s:.0f} s")
        with self.log.open() as log:
            log.seek(start)
            return code, log.read()

    def python(self, words: Sequence[str | Path], timeout_s: float, **more: str) -> tuple[int, str]:
        """Run a module of the tests with the Python that runs this."""
        return self.command([sys.executable, *words], timeout_s, environment=more)

    @contextmanager
    def broker(self, results: Results, *settings: str) -> Iterator[Process]:
        """Our broker for a suite; that it neither dies nor meets an error of its own is one more test."""
        with Process(self.folder / "data", *settings) as process:
            yield process
            assert process.popen is not None
            alive = process.popen.poll() is None
        said = process.log.read_text()
        self.say(f"---- the broker's log\n{said}")
        results.check("the broker's log", alive and TRACE not in said, "an error of its own" if alive else "it died")


@dataclass(frozen=True)
class Part:
    """A part of the proof. `run` raises Skip when what it needs cannot be had."""

    name: str
    kind: str  # conformance, differential or torture
    run: Callable[[Run], Results]


@dataclass
class Done:
    """A part that has run."""

    part: Part
    results: Results
    seconds: float
    skipped: str = ""  # why it did not run


def perform(part: Part, run: Run) -> Done:
    """Run a part; whatever it raises is a failure of it."""
    begun = time.monotonic()
    run.log.write_text("")
    results, skipped = Results(), ""
    try:
        results = part.run(run)
    except Skip as reason:
        skipped = str(reason)
    except Exception as error:
        results.failed["the part itself"] = f"{type(error).__name__}: {error}"
        import traceback

        run.say(traceback.format_exc())
    return Done(part, results, time.monotonic() - begun, skipped)
