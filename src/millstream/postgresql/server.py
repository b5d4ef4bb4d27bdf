"""The embedded PostgreSQL: started, watched and ended by us, on 127.0.0.1 with a password, in a folder of its own.

It ends when its parent does, however that ends (PR_SET_PDEATHSIG). What a kill -9 left behind is waited for and then ended
at the next start. See cluster.py for the folder and account.py for what is different as root.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from psycopg.conninfo import make_conninfo

from millstream.postgresql import account as accounts
from millstream.postgresql import binaries, cluster
from millstream.postgresql.connect import connect, ensure_database
from millstream.settings import MillstreamError, Unreachable

DATABASE = "millstream"  # the store of views
_PORTS = range(15_433, 32_768)  # below the ports that the system hands out itself, so that a kept one stays free
START_S = 300.0  # recovery after a crash replays at most max_wal_size; longer than this means a broken disk
STOP_S = 20.0  # a fast shutdown; then an immediate one, which costs a recovery at the next start
OWNER_S = 5.0  # how long a process that runs the server may take to end before we say that it is in use
LEFTOVERS_S = 10.0  # how long the processes of a killed server may take to end by themselves
SIGNAL_S = 5.0  # and after each signal that asks them to
_POLL_S = 0.02

_log = logging.getLogger(__name__)


class Server:
    """A PostgreSQL server in `folder`; as a context manager it is started and stopped.

    folder: everything it keeps; made when missing, never shared by two servers at a time.
    port: 0 means the one of the last start, or any free one.
    Start it from a thread that lives as long as the server shall: when the thread ends, so does the server.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.absolute()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._owned: int | None = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def conninfo(self, database: str = DATABASE) -> str:
        """Return the libpq connection string of a database. It names the password's file, so it is no secret."""
        return make_conninfo(
            host=cluster.HOST,
            port=self.port,
            user=cluster.ROLE,
            dbname=database,
            passfile=str(self.folder / "passfile"),
            sslmode="disable",
            gssencmode="disable",
        )

    def database(self, name: str) -> str:
        """Create the database `name` unless it exists, and return its connection string."""
        return ensure_database(self.conninfo("postgres"), name)

    @property
    def pid(self) -> int | None:
        """The process id of the server (the postmaster) while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server and return when it takes connections.

        Raises MillstreamError when the folder is in use, the port is taken, or PostgreSQL refuses to start (saying why).
        """
        cluster.prepare(self.folder)
        self._owned = _own(self.folder / "owner")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        data = self.folder / "data"
        account = accounts.account_for(data)
        install = binaries.usable_by(account)
        lock = _outlast(self.folder / "lock", data, account)
        try:
            cluster.initialize(self.folder, install, account)
            (data / "postmaster.pid").unlink(missing_ok=True)  # nobody holds the lock: its writer is gone
            self.port = _choose_port(self.port, cluster.kept_port(self.folder))
            cluster.configure(self.folder, self.port)
            self._process = self._spawn(install, account, lock)
        finally:
            os.close(lock)  # the server's processes hold it from now on
        self._wait_until_ready()
        cluster.keep_port(self.folder, self.port)

    def stop(self) -> None:
        """Stop the server: open transactions are rolled back, connections closed, everything written."""
        process, self._process = self._process, None
        if process is not None:
            for signum, patience in ((signal.SIGINT, STOP_S), (signal.SIGQUIT, SIGNAL_S), (signal.SIGKILL, SIGNAL_S)):
                if process.poll() is None:
                    process.send_signal(signum)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
                    break
                _log.warning("PostgreSQL did not end %s s after %s", patience, signum.name)
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None

    def check(self) -> None:
        """Raise MillstreamError when the server has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise MillstreamError(f"PostgreSQL in {self.folder} {how}: {self._last_words()}")

    def wait(self, timeout: float) -> bool:
        """Wait until the server ends; False when it still runs after `timeout` seconds."""
        try:
            if self._process is not None:
                self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _spawn(self, install: Path, account: accounts.Account, lock: int) -> subprocess.Popen[bytes]:
        data = os.open(self.folder / "data", os.O_RDONLY | os.O_DIRECTORY)
        config = os.open(self.folder / "config", os.O_RDONLY | os.O_DIRECTORY)
        configs = cluster.spelled(config, self.folder / "config", account)
        command: list[str | Path] = [
            install / "bin" / "postgres",
            "-D",
            cluster.spelled(data, self.folder / "data", account),
        ]
        command += ["-c", f"config_file={configs}/postgresql.conf", "-c", f"hba_file={configs}/pg_hba.conf"]
        try:
            with open(self.folder / "start.log", "wb") as output:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                    pass_fds=[data, config, lock],
                    start_new_session=True,  # Ctrl-C in a terminal is for the supervisor, which stops things in order
                    preexec_fn=accounts.with_parent(signal.SIGINT),
                    umask=0o077,
                    **account.popen(),
                )
        finally:
            os.close(data)
            os.close(config)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        spoken = time.monotonic() + 5
        while True:
            self.check()
            try:
                connect(self.conninfo("postgres"), connect_timeout=5).close()
                return
            except Unreachable as error:
                if time.monotonic() > deadline:
                    raise MillstreamError(
                        f"PostgreSQL in {self.folder} took no connection within {START_S:.0f} s: {error}"
                    ) from error
                if time.monotonic() > spoken:
                    _log.info("PostgreSQL is starting: %s", str(error).strip())
                    spoken += 10
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        return cluster.last_words(self.folder, self.folder / "start.log")


def run(
    folder: Path,
    port: int,
    *,
    ready: Callable[[dict[str, object]], None],
    stop: threading.Event,
) -> None:
    """Run the embedded PostgreSQL until `stop` is set; call `ready` with {"postgres": connection string} when it is up.

    Raises MillstreamError when PostgreSQL ends by itself, for the supervisor to start it again.
    """
    with Server(folder, port) as server:
        ready({"postgres": server.database(DATABASE), "port": server.port, "pid": server.pid})
        while not stop.wait(0.2):
            server.check()


def _own(path: Path) -> int:
    """Lock the folder for this process. A previous owner gets a moment to end."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + OWNER_S
    while not _locked(lock):
        if time.monotonic() > deadline:
            os.close(lock)
            raise MillstreamError(
                f"another process runs the PostgreSQL in {path.parent}. Is the application running already? End it, or choose"
                " another data folder."
            )
        time.sleep(_POLL_S)
    return lock


def _outlast(path: Path, data: Path, account: accounts.Account) -> int:
    """Return the lock that all processes of a server inherit: having it means that none of an earlier server is left.

    What a kill -9 orphaned ends by itself, mostly at once; a backend deep in a query is ended by us.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signals = iter((signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))
    patience = time.monotonic() + LEFTOVERS_S
    while not _locked(lock):
        if time.monotonic() > patience:
            left = accounts.processes_in(data.stat(), account)
            if (signum := next(signals, None)) is None:
                os.close(lock)
                raise MillstreamError(
                    f"processes {left} of an earlier PostgreSQL in {path.parent} do not end; end them."
                )
            _log.warning("processes %s of an earlier PostgreSQL are still there: sending %s", left, signum.name)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
            patience = time.monotonic() + SIGNAL_S
        time.sleep(_POLL_S)
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _choose_port(wanted: int, kept: int) -> int:
    if wanted:
        if not _free(wanted):
            raise MillstreamError(
                f"port {wanted} for PostgreSQL is taken on {cluster.HOST}. Choose another one, or 0 for any."
            )
        return wanted
    if kept and _free(kept):
        return kept
    if kept:
        _log.warning("port %s, where PostgreSQL was before, is taken; choosing another one", kept)
    choice = random.SystemRandom()
    for _ in range(100):
        port = choice.choice(_PORTS)
        if _free(port):
            return port
    raise MillstreamError(f"no free port between {_PORTS[0]} and {_PORTS[-1]} on {cluster.HOST}.")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((cluster.HOST, port))
        except OSError:
            return False
    return True
