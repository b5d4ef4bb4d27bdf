"""What commands print: tables for people, which stay whole when piped, or JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

PIPED_WIDTH = 1_000_000  # nobody's terminal: a table in a file or a pipe is never cut or wrapped


class Output:
    """Prints to stdout. `json`: for programs."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    def document(self, value: object) -> None:
        """Print one JSON document."""
        sys.stdout.write(json.dumps(value, default=plain, ensure_ascii=False, indent=2) + "\n")

    def line(self, value: object) -> None:
        """Print one JSON value on a line of its own, at once."""
        sys.stdout.write(json.dumps(value, default=plain, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def flush(self) -> None:
        """Show what was printed now, also to a reader of a pipe."""
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """Print a line of text as it is."""
        sys.stdout.write(text + "\n")

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = (), empty: str = ""
    ) -> None:
        """Print a table. numbers: the columns to align to the right; empty: what to say when there are no rows."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = [[cell(value) for value in row] for row in rows]
        if not shown and empty:
            self.text(empty)
            return
        terminal = sys.stdout.isatty()
        table = Table(
            box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold" if terminal else ""
        )
        for column in columns:
            table.add_column(
                column, justify="right" if column in numbers else "left", no_wrap=not terminal, overflow="fold"
            )
        for row in shown:
            table.add_row(*map(Text, row))
        width = shutil.get_terminal_size().columns if terminal else PIPED_WIDTH
        console = Console(
            width=width, highlight=False, force_terminal=terminal or None, no_color=None if terminal else True
        )
        with console.capture() as capture:
            console.print(table)
        # rich pads each line to the table's width; in a pipe that is noise
        sys.stdout.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def cell(value: object) -> str:
    """Return a value as a table shows it: nothing for None, thousands apart, times to the second in UTC, one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1e9 else f"{value:.2f}"
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat(" ", "seconds").replace("+00:00", "Z")
    return printable(str(value))


def _decimal(value: Decimal) -> str:
    """Return a decimal without the zeros that only its type's scale put there."""
    if not value.is_finite() or abs(value.adjusted()) > 40:
        return str(value)
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def printable(text: str) -> str:
    """Return text in which control characters are escaped: data must not move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(value: object) -> Any:
    """Return what JSON lacks as JSON has it: times as ISO 8601, decimals as text, bytes as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, Decimal):
        return str(value)
    return str(value)
