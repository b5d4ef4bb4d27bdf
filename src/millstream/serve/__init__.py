"""The console: a live page over an application's topics, queries, views and alerts, served on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.serve.service import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # The web server and the database client are loaded by who serves, not by who only imports the package.
    if name == "run":
        from millstream.serve.service import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
