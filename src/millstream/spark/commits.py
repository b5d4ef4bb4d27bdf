"""Positions of queries as positions of their consumer groups, so that a query's lag is read as everybody's is.

A thread of its own commits them, the last one of each query, again and again while the log is away: who puts one never waits.
"""

from __future__ import annotations

import json
import logging
import threading

from millstream.app.names import group
from millstream.client.groups import commit
from millstream.settings import Kafka, MillstreamError
from millstream.spark.progress import Offsets

RETRY_S = 5.0  # between attempts while the log is away
CLOSE_S = 3.0  # how long the end waits for the last positions

_log = logging.getLogger(__name__)


class Commits:
    """The positions that are still to be committed: at most one per query."""

    def __init__(self, kafka: Kafka, app: str) -> None:
        self._kafka = kafka
        self._app = app
        self._changed = threading.Condition()
        self._pending: dict[str, str] = {}
        self._committed: dict[str, str] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="millstream-commits", daemon=True)
        self._thread.start()

    def put(self, query: str, offsets: Offsets) -> None:
        """Note where a query is now, as text by topic and partition. Never waits."""
        position = json.dumps(offsets, sort_keys=True)
        with self._changed:
            if self._committed.get(query) != position:
                self._pending[query] = position
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread once everything is committed, or after CLOSE_S."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                todo = dict(self._pending)
                if not todo:
                    return
            failed = [query for query, position in todo.items() if not self._commit(query, position)]
            with self._changed:
                for query, position in todo.items():
                    if query not in failed and self._pending.get(query) == position:
                        del self._pending[query]
                if failed:
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing, RETRY_S)

    def _commit(self, query: str, position: str) -> bool:
        offsets: Offsets = json.loads(position)
        try:
            places = {(t, int(p)): offset for t, parts in offsets.items() for p, offset in parts.items()}
            commit(self._kafka, group(self._app, query), places)
        except MillstreamError as error:  # the position is for people; the checkpoint is what counts
            _log.warning("query %s: its position could not be committed: %s", query, error)
            return False
        with self._changed:
            self._committed[query] = position
        return True
