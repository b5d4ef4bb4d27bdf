"""Millstream: streaming data for Python, from one laptop to a cluster.

The public names, loaded when first used: importing `millstream` loads neither Spark nor any client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream import testing
    from millstream.app import App
    from millstream.app.sources import postgres
    from millstream.event import Event
    from millstream.settings import Kafka, MillstreamError, Settings
    from millstream.spark.operators.joins import join_within
    from millstream.spark.operators.windows import calendar, cumulating, hopping, session, tumbling

__version__ = "0.1.0"
__all__ = [
    "App",
    "Event",
    "Kafka",
    "MillstreamError",
    "Settings",
    "calendar",
    "cumulating",
    "hopping",
    "join_within",
    "postgres",
    "session",
    "testing",
    "tumbling",
]

_HOME = {
    "App": "millstream.app",
    "Event": "millstream.event",
    "Kafka": "millstream.settings",
    "MillstreamError": "millstream.settings",
    "Settings": "millstream.settings",
    "join_within": "millstream.spark.operators.joins",
    "postgres": "millstream.app.sources",
    **dict.fromkeys(("calendar", "cumulating", "hopping", "session", "tumbling"), "millstream.spark.operators.windows"),
}


def __getattr__(name: str) -> object:
    if name == "testing":
        return import_module("millstream.testing")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
