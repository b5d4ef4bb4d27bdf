"""All queries of an application as a process, in one Spark driver; ready when every query has begun."""

from __future__ import annotations

import logging

from millstream.app import App, load
from millstream.app.names import group
from millstream.app.process import Call
from millstream.client.admin import start_offsets, topic_names
from millstream.client.groups import commit
from millstream.settings import MillstreamError, Settings
from millstream.spark import replay

_log = logging.getLogger(__name__)


def main(call: Call) -> None:
    """Run the queries until asked to end."""
    from millstream.spark.run import SparkDied, run

    app = load(call.file)
    move_queries(app, call.settings)
    try:
        run(app, call.settings, ready=call.ready, stop=call.stop)
    except SparkDied as error:
        raise RuntimeError(str(error)) from error  # nothing that the user must mend: it is started again


def move_queries(app: App, settings: Settings) -> None:
    """Move the queries that `millstream groups reset` wants moved, before any of them starts."""

    def starts(topics: set[str]) -> replay.Offsets:
        return start_offsets(settings.log, topics & set(topic_names(settings.log)))

    for query, offsets in replay.obey(settings, app.name, starts).items():
        _log.info("query %s begins again, as asked for by `millstream groups reset`", query)
        try:
            commit(settings.log, group(app.name, query), offsets)
        except MillstreamError as error:  # the position is for people; the checkpoint is what counts
            _log.warning("query %s: its position could not be committed: %s", query, error)
