"""Databases to topics: a consistent snapshot first, then the database's own log of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.app.inputs import Table
from millstream.settings import Kafka

if TYPE_CHECKING:
    from millstream.capture.source import Open

__all__ = ["run"]


def run(
    app: str,
    source: str,
    open_source: Open,
    tables: Sequence[Table],
    kafka: Kafka,
    *,
    state: Path,
    ready: Callable[[dict[str, object]], None],
    stop: threading.Event,
) -> None:
    """Capture the tables of one database into their topics until `stop` is set.

    source: the database's name in the settings. open_source: connects to it. state: a folder for what is remembered between runs.
    ready: called when every table is copied. Raises MillstreamError when source or log refuse; run it again, and it continues
    where it was.
    """
    from millstream.capture.loop import Capture
    from millstream.capture.sink import KafkaSink
    from millstream.monitor.status import Reporter

    sink = KafkaSink(kafka, state)
    with Reporter(kafka, app) as reporter:
        capture = Capture(app, source, open_source, tables, sink, state=state, report=reporter.report, stop=stop)
        capture.run(ready)
