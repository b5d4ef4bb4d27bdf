"""The supervisor of an application: everything under one data folder, started in order, kept running, ended in reverse order."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from urllib.parse import urlsplit

from millstream.app import App
from millstream.app.graph import STORE, Graph, graph
from millstream.app.process import TOPICS, Process
from millstream.run import runfile
from millstream.run.engine import Engine, Hooks, Start, Status
from millstream.run.home import remember
from millstream.run.lock import Lock
from millstream.run.part import Part, Step, arrange
from millstream.run.reports import Reports
from millstream.run.restarts import Pace
from millstream.run.steps import steps
from millstream.run.takeover import take_over
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.settings.extras import need

_FLUSH = 2.0  # seconds for the last status messages at the end, when the log is not ours and so still there
_TURN = 1.0  # seconds that the owner's thread waits at once
# A signal so soon after the first is its echo (`timeout` and service managers signal a process and its group), not a user who
# loses patience.
_SECOND_THOUGHT = 0.5


class Supervisor:
    """Runs an application's processes.

        with Supervisor(app, settings) as running:
            running.wait_ready()
            print(running.console)
            running.wait()

    It works from any thread and in any process, a test's too: children are started by a thread of its own, and end with the
    process even when that is killed. `extra` adds processes and steps (see `Process` and `Step`) to those of the plan: broker,
    postgres, capture-<database>, spark, deliver, serve, and the steps "topics" and "jars".
    """

    def __init__(
        self,
        app: App,
        settings: Settings | None = None,
        *,
        file: str | None = None,
        extra: Sequence[Part] = (),
        listen: Mapping[str, str] | None = None,
        watch: Callable[[Status], None] | None = None,
        say: Callable[[str], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        """file: from where children load the application; found by itself when `app` is a variable of an imported module.

        listen: "host:port" for "broker" and "console" (loopback only).
        watch: called with every change of a part, on the supervisor's thread; must not wait.   say: called with remarks.
        Raises MillstreamError when the plan does not work out.
        """
        self._given = settings or Settings.load()
        self._given = dataclasses.replace(self._given, data=self._given.data.expanduser().absolute())
        self._listen = _checked(listen or {})
        self.graph: Graph = self._make_graph(app)
        need(*self.graph.extras, by=f"the application {app.name!r}")
        self._file = file or file_of(app)
        self._arrangement = arrange([*self.graph.processes, *self._make_steps(), *self._prepared(extra)])
        self._once = {part.name for part in extra if isinstance(part, Step) and part.once}
        self._watch = watch
        self._say = say or (lambda text: None)
        self._pace = pace or Pace()
        self.run = secrets.token_hex(8)  # the mark of all processes of this run
        self._reports = Reports(self.run, app.name)
        self._running = runfile.Running(self.run, app.name, os.getpid())
        self._ports: dict[str, int] = {}
        self._facts: dict[str, Mapping[str, object]] = {}
        self._lock: Lock | None = None
        self._engine: Engine | None = None
        self._stop_asked = 0

    def _make_graph(self, app: App) -> Graph:
        """What runs; a test of the supervision replaces it."""
        return graph(app, self._given, listen=self._listen)

    def _make_steps(self) -> list[Step]:
        return steps(self.graph, self._given)

    # Start and end

    def start(self) -> None:
        """Take the data folder and begin to start everything; returns before it is ready.

        Raises MillstreamError when another supervisor has the folder, it is not writable, or a port the user gave is taken.
        """
        data = _usable(self._given.data)
        self._lock = Lock(data)
        try:
            take_over(data, self._pace, self._say)
            self._ports = self._choose_ports(data)
            logs = data / "logs"
            logs.mkdir(mode=0o700, exist_ok=True)
            self._running.write(data)
            remember(data, self.graph, self._given)
            hooks = Hooks(self._start_of, self.settings, self._ready, self._changed)
            self._engine = Engine(self._arrangement, self.run, logs, hooks, self._pace)
            self._engine.start()
        except BaseException:
            self._release()
            raise
        if self._stop_asked:
            self._engine.stop(hurry=self._stop_asked > 1)

    def stop(self, *, hurry: bool = False) -> None:
        """End everything in reverse order and give the folder free; returns when all is gone. Again: nothing happens."""
        self.ask_to_stop(hurry=hurry)
        if self._engine is None:
            return
        try:
            self._engine.join()
        except KeyboardInterrupt:
            self._engine.stop(hurry=True)
            self._engine.join()
            raise
        finally:
            self._reports.close(_FLUSH if self._given.kafka else 0)
            if self._lock:
                runfile.remove(self._given.data)
            self._release()

    def ask_to_stop(self, *, hurry: bool = False) -> None:
        """Ask for the end and return at once; safe in a signal handler. `hurry`: without grace."""
        self._stop_asked = max(self._stop_asked, 2 if hurry else 1)
        if self._engine:
            self._engine.stop(hurry=hurry)

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """While inside: SIGINT (Ctrl-C), SIGTERM and SIGHUP end everything in order, a later SIGINT or SIGTERM at once.

        Only in the main thread, around `with supervisor:`.
        """
        first: list[float] = []

        def handle(number: int, _: FrameType | None) -> None:
            first.append(time.monotonic())
            again = first[-1] - first[0] > _SECOND_THOUGHT
            self.ask_to_stop(hurry=again and number != signal.SIGHUP)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # Waiting

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until every process is ready and every step done; False when it was asked to end before that.

        Raises MillstreamError with the last lines of its log when a part is given up, or when the time is over.
        """

        def ready(statuses: Mapping[str, Status]) -> bool:
            return len(statuses) == len(self._arrangement.parts) and all(
                s.state in ("ready", "done") for s in statuses.values()
            )

        if self._started.wait_for(ready, timeout):
            return True
        if self._started.join(0):
            return False
        waiting = [
            f"{s.name} ({s.state})" for s in self._started.statuses().values() if s.state not in ("ready", "done")
        ]
        raise MillstreamError(f"not ready after {timeout:.0f} s: {', '.join(waiting)}. Logs are in {self.logs}.")

    def wait_exit(self, name: str, timeout: float | None = None) -> int:
        """Wait until a process that may end (`ends`), or a step, is done, and return its exit code.

        Raises MillstreamError when the time is over, or everything has ended before.
        """
        name = self._name(name)
        if self._started.wait_for(lambda s: name in s and s[name].state == "done", timeout):
            return self._started.exit_code(name) or 0
        status = self._started.statuses().get(name)
        raise MillstreamError(
            f"{name} has not ended by itself: it is {status.state if status else 'unknown'}. Its log is {self.logs / name}.log."
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended, because it was asked to or was given up; return whether it has.

        Raises MillstreamError with the reason when a part was given up.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        over = self._started.join(0)
        # In turns: a signal that arrives just as this thread begins to wait is handled when it comes to its next instruction.
        while not over and (left := until - time.monotonic()) > 0:
            over = self._started.join(min(_TURN, left))
        if self._started.failure:
            raise self._started.failure
        return over

    # What there is

    @property
    def kafka(self) -> Kafka:
        """The log's address. Raises MillstreamError before the broker is ready."""
        if self._given.kafka:
            return self._given.kafka
        return Kafka(_known(self._running.addresses.get("kafka"), "the broker"))

    @property
    def postgres(self) -> str:
        """The connection string of the store of views. Raises MillstreamError before PostgreSQL is ready."""
        return self._given.postgres or _known(self._store(), "PostgreSQL")

    @property
    def console(self) -> str:
        """The page's address with its token. Raises MillstreamError before it is ready."""
        return _known(self._running.addresses.get("console"), "the console")

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._given.data

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self._given.data / "logs"

    def settings(self) -> Settings:
        """Return the settings with the addresses of the embedded parts that are ready: what children and steps get."""
        postgres = self._running.addresses.get("postgres")
        embedded = {name: _database(postgres, name) for name in self.graph.databases if postgres and name != STORE}
        kafka = self._running.addresses.get("kafka")
        return dataclasses.replace(
            self._given,
            kafka=self._given.kafka or (Kafka(kafka) if kafka else None),
            postgres=self._given.postgres or self._store() or "",
            sources={**self._given.sources, **embedded},
        )

    def statuses(self) -> dict[str, Status]:
        """Return the latest status of every part."""
        return self._started.statuses()

    def pid(self, name: str) -> int:
        """Return the pid of the running process of that name or kind. Raises MillstreamError when it does not run."""
        status = self.statuses().get(self._name(name))
        if status is None or status.pid is None:
            raise MillstreamError(f"{name} does not run now: it is {status.state if status else 'not started'}.")
        return status.pid

    def facts(self, name: str) -> Mapping[str, object]:
        """Return what the process of that name or kind said when it was last ready (PostgreSQL's own "pid", for one)."""
        return self._facts.get(self._name(name), {})

    # What the engine asks and tells, on its thread

    def _start_of(self, part: Part) -> Start:
        port = self._ports.get(part.name, 0)
        command = tuple(word.replace("{port}", str(port)) for word in command_of(part, self._file))
        settings = self.settings()
        if isinstance(part, Process) and part.gets is not None:
            settings = settings.only(part.gets)
        return Start(command, {**settings.environment(), "PYTHONUNBUFFERED": "1", **part.environment})

    def _ready(self, name: str, facts: Mapping[str, object]) -> None:
        self._facts[name] = facts
        for key in next((p.provides for p in self.graph.processes if p.name == name), ()):
            if isinstance(value := facts.get(key), str):
                self._running.addresses[key] = value
        port = _port_in(facts)
        if port and self._ports.get(name) != port:
            self._ports[name] = port
            runfile.write_ports(self._given.data, self._ports)
        if name in self._once:
            self._mark(name).parent.mkdir(mode=0o700, exist_ok=True)
            self._mark(name).touch()
        if name == TOPICS:
            self._reports.log_is_up(self.kafka)

    def _changed(self, status: Status) -> None:
        pids = self._running.processes
        if pids.get(status.name) != status.pid or status.state == "ready":
            pids.pop(status.name, None)
            if status.pid:
                pids[status.name] = status.pid
            with contextlib.suppress(OSError):  # a full disk; the processes matter more than the note about them
                self._running.write(self._given.data)
        self._reports.changed(status)
        if self._watch:
            self._watch(status)

    # Small things

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise MillstreamError("the supervisor was not started: use `with Supervisor(…) as running:`.")
        return self._engine

    def _store(self) -> str | None:
        postgres = self._running.addresses.get("postgres")
        return _database(postgres, STORE) if postgres else None

    def _name(self, name: str) -> str:
        names = [p.name for p in self._arrangement.parts]
        kinds = [p.name for p in self._arrangement.parts if isinstance(p, Process) and p.kind == name]
        if name in names:
            return name
        if len(kinds) == 1:
            return kinds[0]
        raise MillstreamError(f"there is no process {name!r}; there are {', '.join(names)}.")

    def _choose_ports(self, data: Path) -> dict[str, int]:
        """The remembered ports that are free; a port that the user asked for must be."""
        for name, address in self._listen.items():
            host, port = split_address(address)
            if port and not runfile.port_is_free(host, port):
                raise MillstreamError(
                    f"the {name} cannot listen on {address}: the port is taken by another program."
                    " End that one, choose another port, or leave the port out."
                )
        remembered = runfile.read_ports(data)
        return {name: port for name, port in remembered.items() if runfile.port_is_free("127.0.0.1", port)}

    def _prepared(self, extra: Sequence[Part]) -> list[Part]:
        """Steps to be done once in a data folder leave a mark there; where the mark is, nothing is left to do."""
        return [
            dataclasses.replace(part, command=(), call=lambda context: None)
            if isinstance(part, Step) and part.once and self._mark(part.name).exists()
            else part
            for part in extra
        ]

    def _mark(self, step: str) -> Path:
        return self._given.data / "steps" / step

    def _release(self) -> None:
        if self._lock:
            self._lock.release()
            self._lock = None


def command_of(part: Part, file: str) -> tuple[str, ...]:
    """Return the words that start a part; children load the application from `file`."""
    if isinstance(part, Step) or not part.module:
        return part.command
    if part.program:
        return (sys.executable, "-m", part.module, *part.arguments)
    return (sys.executable, "-m", "millstream.run.child", part.module, file, *part.arguments)


def file_of(app: App) -> str:
    """Return from where a child can load the application: the module whose variable it is, or that module's file.

    Raises MillstreamError when no imported module has it.
    """
    # Others may have imported the variable; the module in which its queries or events are written is its home.
    home = {q.function.__module__ for q in app.queries.values()} | {t.event.__module__ for t in app.topics.values()}
    modules = [(name, m) for name, m in list(sys.modules.items()) if isinstance(m, ModuleType)]
    for name, module in sorted(modules, key=lambda found: found[0] not in home):
        variable = next((v for v, value in list(vars(module).items()) if value is app), None)
        package = sys.modules.get(name.partition(".")[0])
        if variable and "." in name and getattr(package, "__file__", None):
            return f"{name}:{variable}"
        if variable and module.__file__:
            return f"{Path(module.__file__).absolute()}:{variable}"
    raise MillstreamError(
        f"the application {app.name!r} is no variable of a module, so child processes cannot load it."
        " Put it into a file of its own, and name that: Supervisor(app, settings, file=…)."
    )


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "127.0.0.1:8080" or "[::1]:8080". Raises MillstreamError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host or int(port) > 65535:
        raise MillstreamError(f"expected an address such as 127.0.0.1:8080, got {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _checked(listen: Mapping[str, str]) -> dict[str, str]:
    for name, address in listen.items():
        host, _ = split_address(address)
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise MillstreamError(
                f"the {name} of `millstream run` listens on this machine only (127.0.0.1), got {address}."
                " To serve others, run the broker alone with TLS and SASL: millstream broker --help."
            )
    return dict(listen)


def _usable(data: Path) -> Path:
    """Make the data folder, for us alone. Raises MillstreamError when it cannot be written."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise MillstreamError(
            f"the data folder {data} cannot be written: {error.strerror or error}."
            " Mend its rights or free space, or choose another with --data."
        ) from error
    return data


def _known(value: str | None, what: str) -> str:
    if value is None:
        raise MillstreamError(f"{what} is not ready yet, so its address is not known; call wait_ready() first.")
    return value


def _database(postgres: str, name: str) -> str:
    from millstream.postgresql.connect import with_database  # only where there is one: an application may do without

    return with_database(postgres, name)


def _port_in(facts: Mapping[str, object]) -> int:
    """The port of the server that reported its address, or 0."""
    try:
        if isinstance(kafka := facts.get("kafka"), str):
            return split_address(kafka)[1]
        if isinstance(postgres := facts.get("postgres"), str):
            from psycopg.conninfo import conninfo_to_dict

            return int(str(conninfo_to_dict(postgres).get("port") or 0))
        if isinstance(console := facts.get("console"), str):
            return urlsplit(console).port or 0
    except (ValueError, MillstreamError):
        pass
    return 0
