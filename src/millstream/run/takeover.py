"""Taking over a data folder from a supervisor that was killed: its processes must be gone before new ones start there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from millstream.run import runfile, tree
from millstream.run.restarts import Pace
from millstream.settings import MillstreamError

_POLL = 0.05
_AFTER_KILL = 5.0  # a process that survives SIGKILL so long hangs in the kernel; nothing here can help


def take_over(data: Path, pace: Pace, say: Callable[[str], None]) -> None:
    """Wait until nothing of the run that run.json names is alive; after a time, kill it. The caller holds the folder's lock.

    say: called with what is waited for.   Raises MillstreamError when something cannot be ended.
    """
    old = runfile.left_over(data)
    if old is None:
        return

    def left() -> set[int]:
        return set(tree.marked(old.run))

    deadline = time.monotonic() + pace.takeover
    if found := left():
        say(f"an earlier run (process {old.pid}) was killed; waiting for what it left: {_pids(found)}")
        # The kernel has told them already; those that do not listen to it, or run where it does not tell, hear it here.
        tree.send(found & set(old.processes.values()), signal.SIGTERM)
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(_POLL)
    if found:
        say(f"killing what did not end: {_pids(found)}")
    deadline = time.monotonic() + _AFTER_KILL
    while found := left():
        tree.send(found, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise MillstreamError(
                f"processes of an earlier run are still there and cannot be ended: {_pids(found)}."
                f" End them (as their user or root), or choose another folder than {data} with --data."
            )
        time.sleep(_POLL)
    runfile.remove(data)


def _pids(found: set[int]) -> str:
    return ", ".join(str(pid) for pid in sorted(found))
