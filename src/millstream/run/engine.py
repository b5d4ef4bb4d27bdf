"""The engine: one thread that starts an arrangement of parts in order, keeps the processes running, and ends them in reverse.

Everything about a part changes on the engine's thread only; others post requests and wait on the condition. The thread also
is the one that starts the children, since the kernel tells a child of its parent's death by that thread (launch.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from millstream.app.process import Process
from millstream.run.life import Life, facts_in, in_words
from millstream.run.logs import LogFile
from millstream.run.part import HOPELESS, Arrangement, Context, Part, Step
from millstream.run.restarts import Pace, Restarts
from millstream.settings import MillstreamError, Settings, redact

State = Literal["waiting", "starting", "ready", "restarting", "done", "failed", "stopping", "stopped"]
_LINE = 200  # characters of a line of a log in a status
_POLL = 0.05  # how often to look where the kernel tells nothing: leftovers, systems without pidfd


@dataclass(frozen=True)
class Status:
    """A part at one moment. `seconds`: how long the state before lasted. `text`: what it does or what went wrong, in words."""

    name: str
    state: State
    pid: int | None = None
    restarts: int = 0
    seconds: float = 0.0
    text: str = ""


class Start(NamedTuple):
    """How to start a process now: its words and the variables to add to the environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


class Hooks(NamedTuple):
    """What the engine asks of, and tells, its owner. All are called on the engine's thread and must not wait.

    start: the command of a process or step at this moment.   settings: those with the addresses of what is ready.
    ready: a process is ready with these facts, before anything that needs it starts.   changed: a part's status changed.
    """

    start: Callable[[Part], Start]
    settings: Callable[[], Settings]
    ready: Callable[[str, Mapping[str, object]], None]
    changed: Callable[[Status], None]


@dataclass
class _Entry:
    """What the engine knows of one part."""

    part: Part
    restarts: Restarts
    state: State = "waiting"
    since: float = 0.0  # when the present state began
    began: float = 0.0  # when the last life began
    text: str = ""
    life: Life | None = None
    code: int | None = None  # of the last life
    ended_in: State | None = None  # the state in which the last life ended, until it is swept and decided upon
    deadline: float | None = None  # to become ready, to start again, to end: what the state waits for
    reason: str = ""  # why the last life ended, in its own words: a line `failed {"error": …}` on stdout
    killed: bool = False
    sweep_until: float = 0.0
    log: LogFile | None = None
    thread: threading.Thread | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def satisfied(self) -> bool:
        return self.state in ("ready", "done")

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "stopped", "waiting") and self.life is None


class Engine:
    """Runs an arrangement. Make it, `start` it, `wait` for what you need, `stop` it."""

    def __init__(self, arrangement: Arrangement, run: str, logs: Path, hooks: Hooks, pace: Pace | None = None) -> None:
        """run: the mark of all processes of this run.   logs: an existing folder for one log file per part."""
        self._arrangement = arrangement
        self._run_mark = run
        self._logs = logs
        self._hooks = hooks
        self._pace = pace or Pace()
        self._entries = {p.name: _Entry(p, Restarts(self._pace)) for p in arrangement.parts}
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._stopping = False
        self._hurry = False
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._statuses: dict[str, Status] = {}
        self._thread = threading.Thread(target=self._run, name="millstream-supervisor", daemon=True)

    # What other threads call

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self, *, hurry: bool = False) -> None:
        """Ask for the end of everything; returns at once, may be called from a signal handler and again.

        hurry: kill what has not ended yet.
        """
        self._stopping = True
        self._hurry = self._hurry or hurry
        self._wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended; return whether it has."""
        return self._over.wait(timeout)

    @property
    def failure(self) -> BaseException | None:
        """Why the engine ended everything by itself, if it did."""
        return self._failure

    def statuses(self) -> dict[str, Status]:
        """Return the status of every part as last told."""
        with self._changed:
            return dict(self._statuses)

    def wait_for(self, condition: Callable[[dict[str, Status]], bool], timeout: float | None = None) -> bool:
        """Wait until the condition holds for the statuses, or the engine is over; return whether the condition holds.

        Raises what made the engine give up.
        """
        with self._changed:
            self._changed.wait_for(lambda: condition(self._statuses) or self._over.is_set(), timeout)
            met = condition(self._statuses)
        if self._failure and not met:
            raise self._failure
        return met

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of the last life of a process, or None."""
        return self._entries[name].code

    # The engine's thread

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self._failure = error
            for entry in self._entries.values():
                if entry.life:
                    entry.life.kill()
        finally:
            for entry in self._entries.values():
                if entry.life:
                    entry.life.close()
                if entry.log:
                    entry.log.close()
            self._selector.close()
            with self._changed:
                self._over.set()
                self._changed.notify_all()
            # The wake pipe stays open until the engine is collected: a late stop() must not write to a number used again.

    def __del__(self) -> None:
        for fd in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _loop(self) -> None:
        for entry in self._entries.values():
            self._set(entry, "waiting")
        while True:
            now = time.monotonic()
            while self._inbox:
                self._inbox.popleft()()
            for entry in self._entries.values():
                self._advance(entry, now)
            if self._stopping:
                self._end_what_may_end(now)
                if all(e.over for e in self._entries.values()):
                    return
            elif all(e.state == "done" for e in self._entries.values()):
                return
            for key, _ in self._selector.select(self._timeout(time.monotonic())):
                if key.fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)

    def _advance(self, entry: _Entry, now: float) -> None:
        """Do what can be done for one part without waiting."""
        life = entry.life
        if life:
            self._read(entry, life, now)
            if entry.ended_in is None and (code := life.code) is not None:
                self._read(entry, life, now)
                entry.code, entry.ended_in = code, entry.state
                entry.sweep_until = now + (0 if self._hurry or entry.killed else self._pace.sweep)
                if life.pidfd >= 0:
                    self._selector.unregister(life.pidfd)
                    life.forget_pidfd()
                self._note(entry, in_words(code))
                if entry.satisfied and not (code == 0 and self._may_end(entry.part)):
                    self._set(entry, "restarting", in_words(code))  # nothing that needs it may start meanwhile
            if entry.ended_in is not None:
                self._sweep(entry, life, now)
            elif self._hurry and not entry.killed:
                self._kill(entry, "killed: the user is in a hurry")
            elif entry.deadline is not None and now >= entry.deadline and not entry.killed:
                if entry.state == "stopping":
                    self._kill(entry, f"did not end within {entry.part.grace:.0f} s; killed")
                elif entry.state == "starting":
                    self._kill(entry, f"not ready within {getattr(entry.part, 'ready_within', 0):.0f} s; killed")
            elif entry.state == "starting" and now - entry.since >= self._pace.slow:
                self._show_last_line(entry)
        elif self._stopping:
            if entry.state in ("restarting", "waiting", "starting") and entry.thread is None:
                self._set(entry, "stopped")
            elif entry.thread and entry.deadline is not None and (now >= entry.deadline or self._hurry):
                self._set(entry, "stopped")  # its thread is a daemon that nobody waits for any more
        elif self._is_due(entry, now):
            self._begin(entry, now)

    def _show_last_line(self, entry: _Entry) -> None:
        """What its log says last tells more about a start that takes long than what it was to do."""
        if entry.log and entry.log.last:
            text = f"{entry.part.doing}; its log: {entry.log.last[-1][:_LINE]}"
            if text != entry.text:
                self._set(entry, "starting", text)

    def _is_due(self, entry: _Entry, now: float) -> bool:
        again = entry.state == "restarting" and entry.deadline is not None and now >= entry.deadline
        return (again or entry.state == "waiting") and self._needs_are_there(entry)

    def _needs_are_there(self, entry: _Entry) -> bool:
        return all(self._entries[n].satisfied for n in self._arrangement.needs[entry.name])

    def _begin(self, entry: _Entry, now: float) -> None:
        if entry.log is None:
            entry.log = LogFile(self._logs / f"{entry.name}.log")
        entry.log.forget()
        entry.began = time.monotonic()
        entry.killed, entry.ended_in, entry.reason = False, None, ""
        part = entry.part
        if isinstance(part, Step) and part.call:
            self._set(entry, "starting", part.doing)
            entry.thread = threading.Thread(
                target=self._call, args=(entry, part.call), name=f"millstream-{part.name}", daemon=True
            )
            entry.thread.start()
            return
        command, environment = self._hooks.start(part)
        try:
            life = entry.life = Life(self._run_mark, part.name, command, environment)
        except OSError as error:  # no memory, no descriptors: perhaps only now
            entry.log.line(f"cannot be started: {error.strerror}")
            self._failed(entry, "cannot be started", now)
            return
        for fd in life.fds:
            self._selector.register(fd, selectors.EVENT_READ)
        self._note(entry, f"started, pid {life.pid}")
        entry.deadline = now + part.ready_within if isinstance(part, Process) and part.ready_within else None
        self._set(entry, "starting", part.doing)
        if isinstance(part, Process) and not part.prints_ready:
            self._ready(entry, {}, now)

    def _read(self, entry: _Entry, life: Life, now: float) -> None:
        before = life.fds
        for from_stdout, line in life.lines():
            if from_stdout and entry.state == "starting" and isinstance(entry.part, Process):
                if (facts := facts_in("ready", line)) is not None:
                    self._ready(entry, facts, now)
                    continue
                if failure := facts_in("failed", line):
                    entry.reason = str(failure.get("error"))
                    continue
            if entry.log:
                entry.log.line(redact(line))
        for fd in set(before) - set(life.fds):
            self._selector.unregister(fd)

    def _ready(self, entry: _Entry, facts: Mapping[str, object], now: float) -> None:
        entry.restarts.ready(now)
        entry.deadline = None
        self._note(entry, "ready")
        self._hooks.ready(entry.name, facts)
        self._set(entry, "ready")

    def _sweep(self, entry: _Entry, life: Life, now: float) -> None:
        """Wait for what the dead process left behind: a second JVM beside an old one would write where that one still writes."""
        left = life.left()
        if left and now < entry.sweep_until:
            return
        if left:
            self._note(entry, f"{len(left)} processes that it left behind are killed")
            life.kill()
            return
        self._read(entry, life, now)
        for fd in life.fds:
            self._selector.unregister(fd)
        life.close()
        entry.life = None
        self._decide(entry, now)

    def _decide(self, entry: _Entry, now: float) -> None:
        """A life is over: is that the end, is there another one, or is it hopeless?"""
        code, ended_in, entry.ended_in = entry.code, entry.ended_in, None
        if ended_in == "stopping" or self._stopping:
            self._set(entry, "stopped")
            return
        part = entry.part
        if code == 0 and self._may_end(part):
            if isinstance(part, Step):
                self._hooks.ready(part.name, {})
            self._set(entry, "done")
            return
        what = in_words(code) if code is not None else "failed"
        if ended_in == "starting" and entry.killed:
            what = f"not ready within {getattr(part, 'ready_within', 0):.0f} s"
        elif ended_in == "starting":
            what += " before it was ready"
        self._failed(entry, what, now, hopeless=code == HOPELESS and self._undisturbed(entry))

    def _undisturbed(self, entry: _Entry) -> bool:
        """Whether all that it builds upon stood during its last life: else its complaint may be about that."""
        below = [self._entries[n] for n in self._arrangement.foundations(entry.name)]
        return all(e.satisfied and e.since <= entry.began for e in below)

    def _failed(self, entry: _Entry, what: str, now: float, *, hopeless: bool = False) -> None:
        pause = entry.restarts.ended(now, hopeless=hopeless)
        if pause is None and entry.reason:
            self._end_with(entry, MillstreamError(f"{entry.name}: {entry.reason}"))
            return
        if pause is None:
            self._end_with(entry, self._without_reason(entry, what))
            return
        entry.deadline = now + pause
        self._note(entry, f"starts again in {pause:.1f} s")
        self._set(entry, "restarting", f"{what}; starts again in {pause:.1f} s")

    def _without_reason(self, entry: _Entry, what: str) -> MillstreamError:
        last = "".join(f"\n    {line}" for line in entry.log.last) if entry.log else ""
        where = entry.log.path if entry.log else self._logs
        tries = f" (tried {entry.restarts.count + 1} times)" if entry.restarts.count else ""
        return MillstreamError(f"{entry.name} {what}{tries}. Its last lines ({where}):{last or ' none'}")

    def _end_with(self, entry: _Entry, failure: MillstreamError) -> None:
        """Give up: everything ends, and those who wait get the failure."""
        self._note(entry, str(failure))
        self._failure = self._failure or failure
        self._stopping = True
        self._set(entry, "failed", str(failure))

    def _end_what_may_end(self, now: float) -> None:
        """Ask every part to end on which nothing depends that has not ended."""
        for entry in self._entries.values():
            if entry.state in ("starting", "ready") and (entry.life or entry.thread) and entry.ended_in is None:
                dependents = self._arrangement.dependents(entry.name)
                if self._hurry or all(self._entries[n].over for n in dependents):
                    entry.deadline = now + entry.part.grace
                    entry.stop.set()
                    if entry.life:
                        self._note(entry, "asked to end")
                        entry.life.end()
                        self._set(entry, "stopping")
                    else:
                        self._set(entry, "stopped" if self._hurry else "stopping")

    @staticmethod
    def _may_end(part: Part) -> bool:
        return isinstance(part, Step) or part.ends

    def _kill(self, entry: _Entry, why: str) -> None:
        assert entry.life
        self._note(entry, why)
        entry.killed = True
        entry.life.kill()

    # Steps that are functions run on a thread of their own

    def _call(self, entry: _Entry, function: Callable[[Context], None]) -> None:
        def progress(text: str) -> None:
            self._post(lambda: self._set(entry, entry.state, text))

        failure: BaseException | None = None
        try:
            function(Context(self._hooks.settings(), progress, entry.stop))
        except BaseException as error:
            failure = error
        self._post(lambda: self._called(entry, failure))

    def _called(self, entry: _Entry, failure: BaseException | None) -> None:
        entry.thread = None
        if entry.state in ("stopping", "stopped"):
            self._set(entry, "stopped")
        elif failure is None:
            self._hooks.ready(entry.name, {})
            self._set(entry, "done")
        elif isinstance(failure, MillstreamError):
            self._end_with(entry, failure)
        else:
            if entry.log:
                entry.log.line(redact(f"{type(failure).__name__}: {failure}"))
            self._failed(entry, "failed", time.monotonic())

    # Small things

    def _set(self, entry: _Entry, state: State, text: str = "") -> None:
        now = time.monotonic()
        lasted = now - entry.since if entry.since and state != entry.state else 0.0
        if state != entry.state or not entry.since:
            entry.since = now
        entry.state, entry.text = state, text
        pid = entry.life.pid if entry.life else None
        status = Status(entry.name, state, pid, entry.restarts.count, lasted, text)
        self._hooks.changed(status)
        with self._changed:
            self._statuses[entry.name] = status
            self._changed.notify_all()

    def _timeout(self, now: float) -> float | None:
        """Seconds until the next thing that nobody will wake us for; None for never."""
        moments = []
        for entry in self._entries.values():
            if entry.life and (entry.ended_in is not None or entry.killed or entry.life.pidfd < 0):
                moments.append(now + _POLL)
            elif entry.life and entry.state == "starting" and now < entry.since + self._pace.slow:
                moments.append(min(entry.since + self._pace.slow, entry.deadline or math.inf))
            elif entry.deadline is None:
                continue
            elif entry.life or entry.thread:
                moments.append(entry.deadline)
            elif entry.state == "restarting" and self._needs_are_there(entry):
                moments.append(entry.deadline)  # else what it needs will wake us when it is ready
        return max(0.0, min(moments) - now) if moments else None

    def _post(self, request: Callable[[], None]) -> None:
        self._inbox.append(request)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"!")

    def _note(self, entry: _Entry, text: str) -> None:
        if entry.log:
            entry.log.note(redact(text))
