"""Small file systems for tests, where the machine lets us mount any."""

from __future__ import annotations

import subprocess
from pathlib import Path


def mount(folder: Path, options: str) -> str:
    """Mount a file system in memory with options such as "size=8m"; return why that is not possible, "" when it is done."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"a file system of {options} cannot be mounted here: there is no program `mount`"
    said = done.stderr.strip() or f"mount ended with {done.returncode}"
    return f"a file system of {options} cannot be mounted here: {said}" if done.returncode else ""
