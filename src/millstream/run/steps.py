"""The steps between an application's processes: the topics that must exist, and the jars that Spark needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module

from confluent_kafka import KafkaError

from millstream.app.graph import Graph
from millstream.app.process import TOPICS
from millstream.client.admin import ensure_topics
from millstream.client.connect import code
from millstream.client.wait import wait_for_kafka
from millstream.monitor.status import forget
from millstream.run.part import Context, Step
from millstream.settings import MillstreamError, Settings

# What the user asked for and no log has: trying again makes no difference.
_FINAL = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
}
_PATIENCE = 30.0  # seconds for a log that was named by address to answer


class _LogAway(Exception):
    """The embedded broker did not answer, or failed; it may have ended just now, so this is tried again."""


def steps(graph: Graph, settings: Settings) -> list[Step]:
    """Return the steps of a graph: "topics", and what its processes want prepared."""
    found = [
        Step(
            TOPICS,
            call=_create_topics(graph, embedded=settings.kafka is None),
            after=graph.names & {"broker"},
            doing=f"creating what is missing of {len(graph.topics)} topics",
        )
    ]
    for process in graph.processes:
        if process.prepare:
            call = partial(_prepare, process.prepare)
            found.append(Step(process.step, call=call, doing=f"looking for the {process.step} of {process.name}"))
    return found


def _create_topics(graph: Graph, *, embedded: bool) -> Callable[[Context], None]:
    began = time.time()  # this may be called again while the application runs: what its parts said since then stays

    def create(context: Context) -> None:
        assert context.settings.kafka, "the step comes after the broker"
        try:
            wait_for_kafka(context.settings.kafka, _PATIENCE)
            ensure_topics(context.settings.kafka, [(t.name, t.partitions, t.config) for t in graph.topics])
            forget(context.settings.kafka, graph.app, began)
        except MillstreamError as error:
            if embedded and code(error) not in _FINAL:
                raise _LogAway(str(error)) from error
            raise

    return create


def _prepare(module: str, context: Context) -> None:
    import_module(module).prepare(context.settings, context.progress)
