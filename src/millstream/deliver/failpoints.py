"""Places where a crash may hurt, by name, so that tests can crash there: by a function, or in a child by a variable."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

MARKED: Final = "delivery marked as open, nothing written"
WRITTEN: Final = "alerts handed to the producer, not acknowledged"
ACKNOWLEDGED: Final = "alerts acknowledged, progress not committed"
COMMITTED: Final = "progress committed"
RECOVERED: Final = "written alerts read back, delivery not begun"

ALL: Final = (MARKED, WRITTEN, ACKNOWLEDGED, COMMITTED, RECOVERED)
VARIABLE: Final = "MILLSTREAM_FAILPOINT"  # "<number>:<name>" kills the process the number-th time that it gets there

tripped: dict[str, Callable[[], None]] = {}
"""What happens at a place: empty except in tests."""


def reach(name: str) -> None:
    """Say that the place `name` has been reached."""
    if tripped and name in tripped:
        tripped[name]()


def arm() -> None:
    """Set the place that the environment names to kill this process, as a power cut would."""
    if wanted := os.environ.get(VARIABLE):
        count, _, name = wanted.partition(":")
        left = int(count)

        def fall() -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        tripped[name] = fall
