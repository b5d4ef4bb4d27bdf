"""The pytest kit: an application's functions on rows in memory, and a whole application on its real parts.

rows = ms.testing.run(very_late, departures=[Departure(…)])            # plain Spark, no broker
with ms.testing.running(app, tmp_path) as flights: …                   # everything, started and ended

The names load when first used: pytest imports this package in every run of every project that has Millstream installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from millstream.settings.extras import need

if TYPE_CHECKING:
    from millstream.testing.harness import Running, running
    from millstream.testing.rows import run, spark_session

__all__ = ["Running", "run", "running", "spark_session"]

_HOME = {"Running": "harness", "run": "rows", "running": "harness", "spark_session": "rows"}
_NEEDS = {"rows": ("spark",), "harness": ()}  # what an application needs beside, its processes say when it is run


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    home = _HOME[name]
    need(*_NEEDS[home], by=f"ms.testing.{name}")
    return getattr(import_module(f"{__name__}.{home}"), name)
