"""Processes: what an application is made of, in which order they start, how they are kept running, and how they end."""

from typing import TYPE_CHECKING

from millstream.app.process import Process
from millstream.run.part import Context, Step

if TYPE_CHECKING:
    from millstream.run.supervisor import Supervisor

__all__ = ["Context", "Process", "Step", "Supervisor"]


def __getattr__(name: str) -> object:
    # The supervisor brings the clients of Kafka and PostgreSQL with it, which a child process loads only when it needs them.
    if name == "Supervisor":
        from millstream.run.supervisor import Supervisor

        return Supervisor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
