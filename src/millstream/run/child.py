"""A part of an application as a child process: `python -m millstream.run.child MODULE APPFILE [ARGUMENTS]`.

MODULE has `main(call)`, see `app.process.Call`. The addresses come in environment variables (Settings.environment).
On stdout it prints one line, `ready {json}`, or `failed {"error": …}` when the user must mend something; everything else that
is printed goes to stderr, where the log goes too. It ends with exit code 0 on SIGTERM, SIGINT, or the end of stdin.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType

from millstream.app.load import PREFIX, load
from millstream.app.process import Call, Ready
from millstream.run.part import HOPELESS
from millstream.settings import MillstreamError, Settings, Unreachable, redact

# Seconds that an orphan may take to end in order; then it and what it started are killed. Short, since the log is gone too: what
# waits for its answers waits in vain, and the next run waits for the orphan.
ORPHAN_GRACE = 3.0
_ENDS = frozenset({signal.SIGTERM, signal.SIGINT})

_log = logging.getLogger("millstream.run.child")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the part that the arguments name until it is asked to end; return the exit code."""
    module, file, *rest = sys.argv[1:] if arguments is None else arguments
    # Each module is imported only in the process that runs it; the application's own file may be one.
    if module.startswith(PREFIX):
        load(file)
    return work(lambda ready, stop: import_module(module).main(Call(file, Settings.inherited(), rest, ready, stop)))


def work(part: Callable[[Ready, threading.Event], None], *, ends: bool = False) -> int:
    """Run a part in the frame that all children share (see above) and return the exit code.

    part: is given what to call when it is ready, and the event on which it must return.
    ends: it may return before that, its work done (see Process.ends).
    """
    say = _own_stdout()
    _log_to_stderr()
    stop = threading.Event()
    # A part may set `stop` itself when it falls apart, which is no reason to call it a good end.
    asked = threading.Event()
    _watch(asked, stop)
    try:
        part(lambda facts: say("ready", facts), stop)
    except MillstreamError as error:
        if not asked.is_set():
            _log.error("%s", error)
            say("failed", {"error": redact(str(error))})
            return 1 if isinstance(error, Unreachable) else HOPELESS
    except Exception:
        if not asked.is_set():
            _log.exception("failed")
            return 1
        _log.warning("failed while ending", exc_info=True)
    if not asked.is_set() and not ends:
        _log.error("ended without being asked to")
        return 1
    return 0


def _own_stdout() -> Callable[[str, dict[str, object]], None]:
    """Keep stdout for our one line; what anybody else prints there, a JVM or a user's function, goes to stderr."""
    own = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)

    def say(word: str, facts: dict[str, object]) -> None:
        os.write(own, f"{word} {json.dumps(facts)}\n".encode())

    return say


class _Redacted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacted("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _watch(*events: threading.Event) -> None:
    """Set the events on SIGTERM, SIGINT and when the supervisor is gone.

    A handler may not set an Event itself: the main thread may hold its lock at that moment. And Python calls it only when the
    main thread comes to its next instruction, which never is when it had just begun to wait. So a thread waits for what the
    interpreter writes as the signal arrives, and for what the handler writes, should a library have taken the former for itself.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)

    def handle(number: int, _: FrameType | None) -> None:
        os.write(wake_write, bytes([number]))

    for number in _ENDS:
        signal.signal(number, handle)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    threading.Thread(target=_watcher, args=(wake_read, events), name="millstream-watch", daemon=True).start()


def _watcher(wake: int, events: Sequence[threading.Event]) -> None:
    wait = select.poll()
    wait.register(wake, select.POLLIN)
    wait.register(0, select.POLLIN)
    parent = os.getppid()
    orphaned = False
    while not orphaned:
        readable = {fd for fd, _ in wait.poll()}
        signals = os.read(wake, 64) if wake in readable else b""
        orphaned = os.getppid() != parent or 0 in readable
        if orphaned or not _ENDS.isdisjoint(signals):
            for event in events:
                event.set()
    # Nobody is left who would kill us when ending takes too long.
    threading.Event().wait(ORPHAN_GRACE)
    if os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
