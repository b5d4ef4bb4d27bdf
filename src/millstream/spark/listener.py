"""Spark's events about queries, handed to the thread that supervises them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Listening(Protocol):
    """Who wants to know of queries, by the id of their run."""

    def registered(self, name: str, query: str, run: str) -> None:
        """A query of a name is about to run; `query` is its id, which its checkpoint keeps."""

    def began(self, run: str, at: str) -> None:
        """A query found nothing to do when it looked, at a time in ISO 8601."""

    def progressed(self, run: str, progress: Mapping[str, Any]) -> None:
        """A batch has ended."""

    def terminated(self, run: str) -> None:
        """A query has ended."""


class Listener(StreamingQueryListener):
    """Puts what Spark tells in its own thread, as calls, to where another thread takes them."""

    def __init__(self, put: Callable[[Callable[[], None]], None], listening: Listening) -> None:
        self._put = put
        self._listening = listening

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query is about to run. Spark calls this before its start returns, and before anything else that it tells of it."""
        self._put(partial(self._listening.registered, event.name or "", str(event.id), str(event.runId)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended."""
        progress = json.loads(event.progress.json)
        self._put(partial(self._listening.progressed, str(event.progress.runId), progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """A trigger found nothing to do."""
        self._put(partial(self._listening.began, str(event.runId), event.timestamp))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        self._put(partial(self._listening.terminated, str(event.runId)))
