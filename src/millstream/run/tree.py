"""The processes that a run has started, with all that those started in turn (a JVM, a postmaster), found by a mark.

Every child gets two environment variables, which its own children inherit. On Linux /proc shows them; elsewhere only the
children themselves are known, through run.json.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

RUN_VARIABLE = "MILLSTREAM_RUN"
PROCESS_VARIABLE = "MILLSTREAM_PROCESS"
_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def marked(run: str, process: str | None = None) -> dict[int, str]:
    """Return pid and process name of everything alive that belongs to the run (and to the one process, if named)."""
    want = f"{RUN_VARIABLE}={run}".encode()
    found = {}
    for entry in _entries():
        try:
            # A zombie's environment is empty, so the dead are not counted.
            environment = (_PROC / entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if want not in environment:
            continue
        name = next((e.partition(b"=")[2].decode() for e in environment if e.startswith(_NAME)), "")
        if process is None or name == process:
            found[int(entry)] = name
    return found


def memory(run: str) -> dict[str, int]:
    """Return the resident memory in bytes of each process of the run with all its descendants. Shared pages count in each."""
    total: dict[str, int] = {}
    for pid, name in marked(run).items():
        try:
            pages = int((_PROC / str(pid) / "statm").read_bytes().split()[1])
        except (OSError, IndexError, ValueError):
            continue
        total[name] = total.get(name, 0) + pages * _PAGE
    return total


def send(pids: Iterable[int], signal_: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_)


def alive(pid: int) -> bool:
    """Return whether a process of that number runs (a zombie does not)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        if _PROC.is_dir() and any(_entries()):
            return False
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_NAME = f"{PROCESS_VARIABLE}=".encode()


def _entries() -> list[str]:
    try:
        return [e for e in os.listdir(_PROC) if e.isdigit()]
    except OSError:
        return []
