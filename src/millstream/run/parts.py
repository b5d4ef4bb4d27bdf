"""From an application and the settings to each room's `run`: what a child process does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.app import App
from millstream.run import plan
from millstream.settings import Kafka, MillstreamError, Settings

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
    from millstream.process.run import SparkDied, run

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


def _kafka(settings: Settings) -> Kafka:
    if settings.kafka is None:
        raise MillstreamError(
            "MILLSTREAM_KAFKA is not set: this process is started by `millstream run`, which sets it."
        )
    return settings.kafka
