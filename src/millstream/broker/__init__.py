"""The broker: Kafka's protocol served over `millstream.log`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `millstream broker`: runs until SIGTERM or SIGINT; returns the exit code."""
    from millstream.broker.command import main as run

    return run(arguments)
