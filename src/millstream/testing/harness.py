"""A whole application on its real parts inside a test: broker, PostgreSQL, capture, Spark and delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from millstream.app import App
from millstream.app.inputs import Topic
from millstream.client.sender import sender
from millstream.client.tail import tail
from millstream.event import Event
from millstream.monitor import catchup
from millstream.run.outside import messages
from millstream.run.part import Context, Part, Step
from millstream.run.supervisor import Supervisor
from millstream.settings import Kafka, MillstreamError, Settings

if TYPE_CHECKING:
    import psycopg

# Spark on a busy machine takes its time; a part that fails is reported at once, whatever this says.
START_TIMEOUT_S = 180.0

Prepare = str | Callable[["psycopg.Connection"], object]


class Running:
    """An application that runs: put events in, wait, look at what came out."""

    def __init__(self, app: App, supervisor: Supervisor) -> None:
        self.app = app
        self.supervisor = supervisor

    @property
    def kafka(self) -> Kafka:
        """The log's address, for clients of your own."""
        return self.supervisor.kafka

    def database(self, name: str) -> psycopg.Connection:
        """Return a connection to the source database `name`; it commits each statement."""
        import psycopg

        return psycopg.connect(self.supervisor.settings().source(name), autocommit=True)

    def produce(self, topic: Topic | str, events: Iterable[Event | bytes]) -> int:
        """Send events, and whatever bytes are given instead of one, to a topic; return how many once all are stored.

        Raises MillstreamError when the log does not take one.
        """
        declared = self.app.topics[topic] if isinstance(topic, str) else topic
        return sender(self.kafka).send(declared.name, _messages(declared, events))

    def wait(self, timeout: float = 60.0) -> None:
        """Return when every query has taken in everything that its topics hold, and every alert is delivered.

        Raises MillstreamError, naming the queries and what they lack, when nothing moves for `timeout` seconds.
        """
        wanted, candidates = catchup.inputs(self.app), catchup.candidates(self.app)
        catchup.wait(self.kafka, self.app.name, wanted, candidates, threading.Event(), patience=timeout)

    def view(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a view, ordered by its columns."""
        import psycopg
        from psycopg import sql
        from psycopg.rows import dict_row

        with psycopg.connect(self.supervisor.postgres, row_factory=dict_row) as connection:
            rows = connection.execute(
                sql.SQL("SELECT * FROM {}").format(sql.Identifier(self.app.name, name))
            ).fetchall()
        return sorted(rows, key=lambda row: [str(value) for value in row.values()])

    def topic(self, name: str) -> list[dict[str, Any]]:
        """Return the JSON values of everything in a topic, in the order of each partition; tombstones are left out."""
        return [
            msgspec.json.decode(m.value)
            for m in tail(self.kafka, name, "earliest", follow=False)
            if m.value is not None
        ]


def _messages(topic: Topic, events: Iterable[Event | bytes]) -> Iterator[tuple[bytes | None, bytes]]:
    for event in events:
        if isinstance(event, bytes):
            yield None, event
        else:
            yield from messages(topic, [event])


@contextmanager
def running(
    app: App,
    data: Path | str,
    *,
    prepare: Mapping[str, Prepare] | None = None,
    settings: Settings | None = None,
    file: str | None = None,
    extra: Sequence[Part] = (),
) -> Iterator[Running]:
    """Run an application on its real parts while inside; everything has ended when this returns.

        with ms.testing.running(app, tmp_path, prepare={"ops": "CREATE TABLE planes (…)"}) as flights:
            flights.produce("departures", [Departure(…)])
            flights.wait()
            assert flights.view("delay_by_hour") == […]

    data: the folder for everything that it keeps.
    prepare: by source database, SQL or a function of a connection that makes its tables before they are captured.
    settings: addresses, for parts that live elsewhere. Without them everything is embedded, whatever `millstream.toml` and the
    environment say. In a source database of yours the replication slot and the publication are dropped at the end; what
    `prepare` made there, and topics and views at addresses of yours, stay.
    file: where children load the application from; found by itself.

    Raises MillstreamError when a part does not start, or when a source of yours is captured by an application of this name.
    """
    given = replace(settings or Settings.embedded(Path(data)), data=Path(data))
    captures = {name: t.source.process(given) for t in app.tables.values() if given.source(name := t.source.database)}
    steps = [
        Step(f"prepare-{name}", call=_preparing(name, what), after=_embedded(given, name), before={f"capture-{name}"})
        for name, what in (prepare or {}).items()
    ]
    with ExitStack() as sources:
        for name, process in captures.items():
            if (borrowed := getattr(import_module(process.module), "borrowed", None)) is not None:
                sources.enter_context(borrowed(app.name, name, given))
        with Supervisor(app, given, file=file, extra=[*steps, *extra]) as supervisor:
            if not supervisor.wait_ready(START_TIMEOUT_S):
                raise MillstreamError(
                    f"the application ended while it was starting; its logs are in {supervisor.logs}."
                )
            yield Running(app, supervisor)


def _embedded(settings: Settings, name: str) -> set[str]:
    return set() if settings.source(name) else {"postgres"}


def _preparing(name: str, what: Prepare) -> Callable[[Context], None]:
    def prepare(context: Context) -> None:
        import psycopg

        with psycopg.connect(context.settings.source(name)) as connection:
            if isinstance(what, str):
                connection.execute(cast("Any", what))
            else:
                what(connection)

    return prepare
