"""One life of a child process: its start, its two output pipes, its end, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from millstream.run import tree

MAX_LINE = 16 * 1024  # a longer line is cut into pieces, so that a child that never ends its line fills no memory
_READ = 64 * 1024
_LAUNCH = str(Path(__file__).with_name("launch.py"))


class Life:
    """A started child. It is the head of a session of its own, so that Ctrl-C at the terminal reaches only the supervisor.

    Its stdin is a pipe that nobody writes to: end of file there means that the supervisor is gone.
    """

    def __init__(self, run: str, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start `command` with `environment` added to ours, marked as `name` of the run `run`.

        Must be called from the thread that outlives the child: see launch.py.
        """
        self.name = name
        self._run = run
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, tree.RUN_VARIABLE: run, tree.PROCESS_VARIABLE: name},
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self.pid = self._process.pid
        self._pipes = {self._process.stdout.fileno(): b"", self._process.stderr.fileno(): b""}
        self.stdout = self._process.stdout.fileno()
        for fd in self._pipes:
            os.set_blocking(fd, False)
        self.pidfd = _pidfd(self.pid)

    @property
    def fds(self) -> tuple[int, ...]:
        """What to wait for: open pipes, and the descriptor that becomes readable when the child ends (where there is one)."""
        return (*self._pipes, *((self.pidfd,) if self.pidfd >= 0 else ()))

    @property
    def code(self) -> int | None:
        """The exit code (negative: the signal that killed it), or None while it runs. Reaps it."""
        return self._process.poll()

    def lines(self) -> Iterator[tuple[bool, str]]:
        """Yield what can be read now without waiting: (it came from stdout, the line)."""
        for fd in list(self._pipes):
            try:
                data = os.read(fd, _READ)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            rest = self._pipes[fd] + data
            if not data:
                del self._pipes[fd]
            while rest:
                line, newline, after = rest.partition(b"\n")
                if not newline and data and len(line) < MAX_LINE:
                    break
                yield fd == self.stdout, line[:MAX_LINE].decode(errors="replace").rstrip("\r")
                rest = after if len(line) <= MAX_LINE else rest[MAX_LINE:]
            if fd in self._pipes:
                self._pipes[fd] = rest

    def end(self) -> None:
        """Ask it to end: SIGTERM to the child alone, which ends what it has started itself."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and everything that it started; it first, so that it does not see its children die and act on that."""
        left = self.left()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        tree.send(left - {self.pid}, signal.SIGKILL)
        if self._process.poll() is None:
            # Its group too, for systems without /proc; while the child is not reaped nobody else can have the number.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def left(self) -> set[int]:
        """Return the pids of everything alive that this process has started, itself included while it lives."""
        return set(tree.marked(self._run, self.name))

    def forget_pidfd(self) -> None:
        """Close the descriptor that tells of the end: from then on it is readable for ever."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def close(self) -> None:
        """Close our ends of the pipes. Only after its end: closing stdin tells a child to end."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._pipes.clear()
        self.forget_pidfd()


def facts_in(word: str, line: str) -> dict[str, object] | None:
    """Return the facts in a line `<word> {json}`, or None when it is another line."""
    first, _, rest = line.partition(" ")
    if first != word:
        return None
    try:
        facts = json.loads(rest or "{}")
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def in_words(code: int) -> str:
    """Return how a process ended: "ended with exit code 3", "killed by SIGKILL"."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
