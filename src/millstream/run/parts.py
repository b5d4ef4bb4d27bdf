"""From an application and the settings to each room's `run`: what a child process does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from millstream.app import App
from millstream.run import plan
from millstream.settings import Kafka, MillstreamError, Settings

_log = logging.getLogger(__name__)

Ready = Callable[[dict[str, object]], None]


def run_postgres(settings: Settings, databases: Sequence[str], ready: Ready, stop: threading.Event) -> None:
    """The embedded PostgreSQL; ready once the databases are there. It keeps its port by itself."""
    from millstream.postgresql import server
    from millstream.postgresql.connect import ensure_database

    def prepare(facts: dict[str, object]) -> None:
        for name in databases:
            ensure_database(str(facts["postgres"]), name)
        ready(facts)

    server.run(settings.data / "postgres", 0, ready=prepare, stop=stop)


def run_capture(app: App, settings: Settings, source: str, ready: Ready, stop: threading.Event) -> None:
    """Change data capture of one source database; ready when the first snapshot is complete."""
    from millstream import capture

    tables = plan.sources(app)[source]
    state = settings.data / "capture" / source
    capture.run(
        app.name, source, settings.source(source), tables, _kafka(settings), state=state, ready=ready, stop=stop
    )


def run_spark(app: App, settings: Settings, ready: Ready, stop: threading.Event) -> None:
    """All queries, in one Spark driver; ready when every query has begun."""
    from millstream.spark.run import SparkDied, run

    _replay(app, settings)
    queries = tuple(app.queries.values())
    try:
        run(
            app.name,
            queries,
            app.topics,
            app.tables,
            _kafka(settings),
            settings.postgres,
            settings,
            ready=ready,
            stop=stop,
        )
    except SparkDied as error:
        raise RuntimeError(str(error)) from error  # nothing that the user must mend: it is started again


def run_deliver(app: App, settings: Settings, ready: Ready, stop: threading.Event) -> None:
    """Alerts: from candidates to each alert once."""
    from millstream.deliver.alerts import Alert, run

    alerts = [Alert(candidates, to, group) for candidates, to, group in plan.alerts(app)]
    run(app.name, alerts, _kafka(settings), ready=ready, stop=stop)


def _replay(app: App, settings: Settings) -> None:
    """Move the queries that `millstream groups reset` wants moved, before any of them starts."""
    from millstream.client.admin import start_offsets, topic_names
    from millstream.client.groups import commit
    from millstream.run import replay

    def starts(topics: set[str]) -> replay.Offsets:
        return start_offsets(_kafka(settings), topics & set(topic_names(_kafka(settings))))

    for query, offsets in replay.obey(settings.data, app.name, starts).items():
        _log.info("query %s begins again, as asked for by `millstream groups reset`", query)
        try:
            commit(_kafka(settings), f"{app.name}.{query}", offsets)
        except MillstreamError as error:  # the position is for people; the checkpoint is what counts
            _log.warning("query %s: its position could not be committed: %s", query, error)


def _kafka(settings: Settings) -> Kafka:
    if settings.kafka is None:
        raise MillstreamError(
            "MILLSTREAM_KAFKA is not set: this process is started by `millstream run`, which sets it."
        )
    return settings.kafka
