"""Places where a crash may hurt, by name, so that tests can crash there. Each room names its own in its `failpoints.py`.

Every such place calls `reach(NAME)`. In a running system that is one look-up in an empty dictionary. A test puts a function
under the name, or starts a child with MILLSTREAM_FAILPOINT set to "name" or "name:3": the child kills itself at the first or
third pass, as a power cut would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "MILLSTREAM_FAILPOINT"

tripped: dict[str, Callable[[], None]] = {}
"""What happens at a place: empty except in tests."""


def reach(name: str) -> None:
    """Say that the place `name` has been reached."""
    if tripped and name in tripped:
        tripped[name]()


def _arm(wanted: str) -> None:
    name, _, count = wanted.partition(":")
    left = int(count or 1)

    def fall() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    tripped[name] = fall


if VARIABLE in os.environ:
    _arm(os.environ[VARIABLE])
