"""A process of a running application as a value: which module it runs, what it needs first, and what it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from millstream.settings import Settings

TOPICS = "topics"  # the step that creates the topics; who uses the log needs it
Ready = Callable[[dict[str, object]], None]


@dataclass(frozen=True)
class Process:
    """A child process that is kept running.

    name: unique in an application.   kind: what it is, when there are several ("capture" for "capture-ops"); the name by default.
    module: has `main(call: Call)`, which runs until `call.stop`; with `program` it is a program of its own (`python -m module`).
    arguments: words for it; "{port}" in one stands for the port it had the last time, or 0 the first time.
    command: instead of a module, the words of any program.
    needs: names or kinds of the parts that must be ready before it starts, and before it starts again.
    gets: the addresses it is given: "kafka", "postgres", "spark", "sources.<name>"; no process gets another's secrets.
    provides: addresses that it tells of when it is ready, and that others get: "kafka", "postgres", "console".
    prepare: a module with `prepare(settings, say)`, called once before it starts, for downloads. The step bears its last name.
    extras: optional parts of the installation that it needs ("spark", "postgresql"), as `settings.extras` names them.
    prints_ready: it prints `ready {json}` on stdout once it can be used; without, it is ready as soon as it runs.
    ready_within: seconds to become ready, after which it is killed and started again; None: as long as it takes.
    grace: seconds between SIGTERM and SIGKILL when it is to end.
    ends: it is done when it ends with exit code 0 (a replayer); otherwise every end is followed by a new start.
    doing: what it does until it is ready, in words for the user.
    """

    name: str
    command: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    kind: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    prints_ready: bool = True
    ready_within: float | None = 120.0
    grace: float = 10.0
    ends: bool = False
    doing: str = "starting"
    module: str = ""
    arguments: tuple[str, ...] = ()
    program: bool = False
    gets: frozenset[str] | None = None
    provides: frozenset[str] = frozenset()
    prepare: str = ""
    extras: frozenset[str] = frozenset()

    @property
    def step(self) -> str:
        """The name of the step that prepares it, "" for none."""
        return self.prepare.rpartition(".")[2]

    @property
    def waits_for(self) -> frozenset[str]:
        """What it needs, its own preparation included."""
        return self.needs | {self.step} if self.prepare else self.needs


@dataclass(frozen=True)
class Call:
    """What the `main` of a process' module is given.

    file: from where the application is loaded (`millstream.app.load`).
    settings: the addresses of what it needs.   arguments: those of its Process.
    ready: to be called once it can be used, with facts that others may read.   stop: set when it is to end.
    """

    file: str
    settings: Settings
    arguments: Sequence[str]
    ready: Ready
    stop: threading.Event
