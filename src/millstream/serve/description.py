"""What an application declares, found out in a process of its own: the user's file may load Spark, the console does not.

`python -m millstream.serve.description APPFILE` prints {"description": …} or {"error": …} as one line of JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec

from millstream.app import graph, load
from millstream.settings import MillstreamError

TIMEOUT_S = 120.0  # how long the user's file may take to import


def describe(target: str) -> dict[str, Any]:
    """Return `app.graph.describe` of the application that `target` names.

    Raises MillstreamError as `millstream.app.load` does, or when the file takes too long or ends its process.
    """
    command = (sys.executable, "-m", "millstream.serve.description", target)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise MillstreamError(f"{target} is still being imported after {TIMEOUT_S:.0f} s.") from error
    except msgspec.DecodeError as error:
        raise MillstreamError(
            f"{target} ended its process (exit code {done.returncode}) while being imported."
        ) from error
    if "error" in answer:
        raise MillstreamError(answer["error"])
    description: dict[str, Any] = answer["description"]
    return description


def main(target: str) -> None:
    """Print the description of the application. What the user's file prints goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        answer: dict[str, Any] = {"description": graph.describe(load(target))}
    except MillstreamError as error:
        answer = {"error": str(error)}
    os.write(own, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
