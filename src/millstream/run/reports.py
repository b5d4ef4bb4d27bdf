"""What the supervisor says about its processes in the status topic: pid, state, restarts, memory. Never fatal."""

from __future__ import annotations

import contextlib
import logging
import threading

from millstream.monitor.status import Reporter
from millstream.run import tree
from millstream.run.engine import Status
from millstream.settings import Kafka

MEMORY_EVERY = 10.0  # seconds between looks at the memory; a look reads a few files per process
MEMORY_STEP = 0.05  # smaller changes are not worth a message

_log = logging.getLogger(__name__)


class Reports:
    """Reports of kind "process". Facts: state, pid, restarts, text, memory (bytes with all descendants, null where unknown)."""

    def __init__(self, run: str, app: str) -> None:
        self._run_mark = run
        self._app = app
        self._lock = threading.Lock()
        self._statuses: dict[str, Status] = {}
        self._memory: dict[str, int] = {}
        self._reporter: Reporter | None = None
        self._stop = threading.Event()

    def log_is_up(self, kafka: Kafka) -> None:
        """Begin to report: what is known so far, then every change."""
        if self._reporter is not None:
            return
        with contextlib.suppress(Exception):
            self._reporter = Reporter(kafka, self._app)
            threading.Thread(target=self._watch_memory, name="millstream-memory", daemon=True).start()
        for name in list(self._statuses):
            self._send(name)

    def changed(self, status: Status) -> None:
        """Note a status."""
        with self._lock:
            self._statuses[status.name] = status
        self._send(status.name)

    def close(self, timeout: float) -> None:
        """Send the last facts. With timeout 0, when the log has ended too, nobody waits for what cannot be sent."""
        self._stop.set()
        if self._reporter is None:
            return
        closing = threading.Thread(target=self._close, args=(self._reporter, timeout), daemon=True)
        closing.start()
        if timeout:
            closing.join(timeout + 1)

    @staticmethod
    def _close(reporter: Reporter, timeout: float) -> None:
        with contextlib.suppress(Exception):
            reporter.close(timeout)

    def _send(self, name: str) -> None:
        if self._reporter is None:
            return
        with self._lock:
            status, memory = self._statuses[name], self._memory.get(name)
        try:
            self._reporter.report(
                "process",
                name,
                state=status.state,
                pid=status.pid,
                restarts=status.restarts,
                text=status.text,
                memory=memory if status.pid else None,
            )
        except Exception:
            _log.debug("the status of %s is not reported", name, exc_info=True)

    def _watch_memory(self) -> None:
        while not self._stop.wait(MEMORY_EVERY if self._memory else 1.0):
            changed = []
            found = tree.memory(self._run_mark)
            with self._lock:
                for name, size in found.items():
                    if name in self._statuses and abs(size - self._memory.get(name, 0)) > MEMORY_STEP * size:
                        self._memory[name] = size
                        changed.append(name)
            for name in changed:
                self._send(name)
