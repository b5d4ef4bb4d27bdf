"""Tiny children for the tests of the supervision, and an engine around them."""

import json
import os
import sys
import threading
import time
from pathlib import Path

from millstream.run.engine import Engine, Hooks, Start
from millstream.run.part import arrange
from millstream.run.restarts import Pace
from millstream.settings import Settings

QUICK = Pace(first=0.02, most=0.1, healthy=5.0, tries=3, sweep=2.0, takeover=1.0)

# What most children do: say in a common file when they begin, are ready and end.
_CHILD = """
import json, os, signal, sys, time
name, said = {name!r}, {said!r}
def say(what):
    with open(said, "a") as f:
        f.write(json.dumps([name, what, os.getpid()]) + "\\n")
def ready(**facts):
    say("ready")
    print("ready", json.dumps(facts), flush=True)
def end(*_):
    say("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
say("start")
{body}
while True:
    signal.pause()
"""


class Children:
    """Makes scripts and tells what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "said.jsonl"

    def script(self, name: str, body: str = "ready()") -> tuple[str, ...]:
        path = self.folder / f"{name}.py"
        path.write_text(_CHILD.format(name=name, said=str(self.file), body=body))
        return (sys.executable, "-I", "-S", str(path))

    def said(self) -> list[tuple[str, str]]:
        return [(name, what) for name, what, _ in self._lines()]

    def pids(self, name: str) -> list[int]:
        return [pid for n, what, pid in self._lines() if n == name and what == "start"]

    def _lines(self) -> list[list]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


class Recorder:
    """An engine whose statuses are kept."""

    def __init__(self, folder: Path, parts, pace: Pace = QUICK) -> None:
        self.statuses = []
        self.facts = {}
        self.settings = Settings(data=folder)
        logs = folder / "logs"
        logs.mkdir(exist_ok=True)
        hooks = Hooks(
            start=lambda part: Start(part.command, part.environment),
            settings=lambda: self.settings,
            ready=lambda name, facts: self.facts.__setitem__(name, dict(facts)),
            changed=self.statuses.append,
        )
        self.run = f"test-{os.getpid()}-{id(self)}"
        self.engine = Engine(arrange(parts), self.run, logs, hooks, pace)

    def __enter__(self):
        self.engine.start()
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.stop(hurry=True)
        assert self.engine.join(10)

    def states(self, name: str) -> list[str]:
        found = []
        for status in self.statuses:
            if status.name == name and (not found or found[-1] != status.state):
                found.append(status.state)
        return found


def wait_until(condition, seconds: float = 10.0):
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        threading.Event().wait(0.01)
    return found


def all_ready(statuses) -> bool:
    return bool(statuses) and all(s.state in ("ready", "done") for s in statuses.values())
