"""A log and a store of views for the tests of this room, and how to run queries on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from millstream.app import App
from millstream.app.graph import graph
from millstream.app.inputs import Table, Topic
from millstream.app.query import Query
from millstream.client.admin import ensure_topics
from millstream.monitor.status import read
from millstream.postgresql.connect import ensure_database
from millstream.postgresql.server import Server
from millstream.settings import Kafka, Settings
from tests.brokers import running_broker, wait_until

START_S = 90.0


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_broker(tmp_path_factory.mktemp("kafka") / "log") as address:
        yield address


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of a store of views."""
    with Server(tmp_path_factory.mktemp("postgres") / "data") as server:
        yield ensure_database(server.conninfo("postgres"), "millstream")


class Runner:
    """Queries that run in a thread of this process, on the session of all tests."""

    def __init__(self, spark: Any, kafka: Kafka, views: str, settings: Settings) -> None:
        self._spark, self._kafka = spark, kafka
        self.settings = replace(settings, kafka=kafka, postgres=views)

    @contextmanager
    def running(
        self, app: str, queries: Sequence[Query], topics: Mapping[str, Topic] | None = None, *, wait: bool = True
    ) -> Iterator[Callable[[str], Mapping[str, Any]]]:
        """Run the queries; gives a function from a query's name to its latest facts. topics: all, when more than they read.
        wait: until all have begun.
        """
        from millstream.spark.run import run

        declared = App(app)
        declared.queries = {q.name: q for q in queries}
        declared.topics = dict(topics or {i.name: i for q in queries for i in q.inputs if isinstance(i, Topic)})
        declared.tables = {i.name: i for q in queries for i in q.inputs if isinstance(i, Table)}
        needed = graph(declared, self.settings).topics
        ensure_topics(self._kafka, [(topic.name, topic.partitions, topic.config) for topic in needed])
        ready, stop = threading.Event(), threading.Event()
        errors: list[BaseException] = []

        def target() -> None:
            try:
                run(declared, self.settings, ready=lambda facts: ready.set(), stop=stop, spark=self._spark)
            except BaseException as error:
                errors.append(error)
                ready.set()

        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        try:
            assert not wait or ready.wait(START_S), "the queries did not begin"
            if errors:
                raise errors[0]
            yield lambda name: read(self._kafka, app).get(("query", name), {})
        finally:
            stop.set()
            thread.join(20)
            assert not thread.is_alive(), "the queries did not end"


@pytest.fixture
def runner(spark, kafka, views, tmp_path) -> Runner:
    return Runner(spark, kafka, views, Settings(data=tmp_path, cache=Settings.load().cache))


@pytest.fixture
def until():
    return wait_until
