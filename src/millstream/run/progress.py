"""What a human sees while an application starts and runs: a line per part, live on a terminal, plain when piped."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from millstream.run.engine import Status

NEWS_EVERY = 5.0  # seconds between lines about a step that is under way, where nothing moves


class Progress:
    """Shows statuses. On a terminal: a table that moves until `settled`; afterwards, and elsewhere, a line per event.

    with Progress(Console()) as progress:
        Supervisor(app, settings, watch=progress.show, say=progress.say)
    """

    def __init__(self, console: Console, *, silent: bool = False) -> None:
        """silent: no moving table; only what is said."""
        self._console = console
        self._moving = console.is_terminal and not silent
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}  # when each part's state began
        self._told: dict[str, float] = {}  # when there was last a line about it
        self._said = ""
        self._notes: dict[str, str] = {}
        self._spinner = Spinner("dots")
        self._statuses: dict[str, Status] = {}
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._moving:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settled()

    def settled(self) -> None:
        """The start is over: the moving table gives way to its last lines."""
        with self._lock:
            live, self._live = self._live, None
        if live:
            live.stop()

    def say(self, text: str) -> None:
        """Show a remark, unless it is the one before again."""
        with self._lock:
            again, self._said = text == self._said, text
        if not again:
            self._console.print(escape(text), highlight=False, soft_wrap=True)

    def note(self, name: str, text: str) -> None:
        """Show how far something is; each text replaces the one before, and "" ends it."""
        now = time.monotonic()
        with self._lock:
            self._notes[name] = text
            told = self._moving or not text or now - self._told.get(name, 0.0) < NEWS_EVERY
            if not told:
                self._told[name] = now
        if not told:
            self._console.print(f"[dim]·[/] {name:<14} {escape(text)}", highlight=False, soft_wrap=True)

    def show(self, status: Status) -> None:
        """Show a change. Called on the supervisor's thread."""
        now = time.monotonic()
        with self._lock:
            before = self._statuses.get(status.name)
            self._statuses[status.name] = status
            if before is None or before.state != status.state:
                self._since[status.name] = self._told[status.name] = now
            line = describe(before, status)
            if not line and not self._moving and self._is_news(before, status, now):
                self._told[status.name] = now
                line = f"[dim]·[/] {status.name:<14} {escape(status.text)} [dim]({now - self._since[status.name]:.0f} s)[/]"
        if line:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _is_news(self, before: Status | None, now: Status, at: float) -> bool:
        """Where nothing moves: whether a part that takes its time deserves a line about how far it is."""
        return (
            now.state == "starting"
            and before is not None
            and before.text != now.text
            and at - self._told[now.name] >= NEWS_EVERY
        )

    def _table(self) -> Table:
        """What is under way now. What is ready has its own line above."""
        table = Table.grid(padding=(0, 1))
        with self._lock:
            for name, status in self._statuses.items():
                if status.state in ("starting", "stopping"):
                    seconds = time.monotonic() - self._since[name]
                    table.add_row(
                        self._spinner, f"{name:<14} {escape(status.text or status.state)} [dim]{seconds:.0f} s[/]"
                    )
            for name, text in self._notes.items():
                if text:
                    table.add_row(self._spinner, f"{name:<14} {escape(text)}")
        return table


def describe(before: Status | None, now: Status) -> str:
    """Return the line about a change of state, or "" when it is not worth one."""
    if before is None or before.state == now.state:
        return ""
    name = f"{now.name:<14}"
    if now.state == "ready":
        again = f", restart {now.restarts}" if now.restarts else ""
        return f"[green]✓[/] {name} ready in {now.seconds:.1f} s{again}"
    if now.state == "done" and before.state != "waiting":
        return f"[green]✓[/] {name} done in {now.seconds:.1f} s"
    if now.state == "restarting":
        return f"[yellow]![/] {name} {escape(now.text)}"
    if now.state == "failed":
        return f"[red]✗[/] {name} given up"
    if now.state == "stopped" and before.state == "stopping":
        return f"[dim]·[/] {name} ended in {now.seconds:.1f} s"
    return ""
