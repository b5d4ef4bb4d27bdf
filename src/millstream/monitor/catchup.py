"""Waiting until every query has worked off its input, with a word on which one has not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from millstream.app import App
from millstream.app.names import DEAD_LETTERS, group
from millstream.client.admin import end_offsets, topic_names
from millstream.monitor.lag import Lag, all_lags
from millstream.monitor.status import read
from millstream.settings import Kafka, MillstreamError

PATIENCE_S = 120.0  # without any query getting on; a slow machine may take long, a stuck query must not take forever
_EVERY_S = 0.25
_STUCK_S = 3.0  # without movement, before the queries are asked what is wrong
_TELL_S = 5.0  # between two words on how far they are

Offsets = Mapping[tuple[str, int], int]


def inputs(app: App) -> dict[str, set[str]]:
    """Return the topics that each consumer group has to read to the end: of each query, and of dead letters."""
    groups = {group(app.name, q.name): {i.name for i in q.streams} for q in app.queries.values()}
    return {**groups, group(app.name, DEAD_LETTERS): set(app.topics)}


def candidates(app: App) -> list[str]:
    """Return the topics between queries and deliveries."""
    return [d.candidates for q in app.queries.values() for d in q.output.deliveries(app.name, q)]


def behind(wanted: Mapping[str, set[str]], ends: Offsets, lags: Iterable[Lag]) -> dict[str, int]:
    """Return how many events each group still has before it, for the groups that have any.

    A partition in which a group has not committed anything counts whole.
    """
    committed = {(lag.group, lag.topic, lag.partition): lag.committed for lag in lags}
    left = {
        group: sum(
            max(0, end - committed.get((group, topic, partition), 0))
            for (topic, partition), end in ends.items()
            if topic in topics
        )
        for group, topics in wanted.items()
    }
    return {group: count for group, count in left.items() if count}


def wait(
    kafka: Kafka,
    app: str,
    wanted: Mapping[str, set[str]],
    candidates: Iterable[str],
    stop: threading.Event,
    *,
    progress: Callable[[str], None] = lambda text: None,
    patience: float = PATIENCE_S,
) -> bool:
    """Return True when every group has reached the end of its topics; False when `stop` is set before.

    candidates: the topics between an alert's query and its delivery; their readers have to reach their end too.
    Raises MillstreamError, naming the groups and what they lack, when a query has failed for good, or none gets on for
    `patience` seconds.
    """
    before: dict[str, int] | None = None
    since = told = time.monotonic()
    calm = False
    while not stop.is_set():
        left = _left(kafka, wanted, set(candidates))
        if not left and calm:
            return True
        calm = not left  # a query's last results may have reached its output just now: look again before believing it
        now = time.monotonic()
        if left != before:
            before, since = left, now
        elif left and now - since > _STUCK_S:
            _check_queries(kafka, app, left)
        if left and now - since > patience:
            raise MillstreamError(
                f"the results are not complete: {_words(left)}, and nothing moved for {patience:.0f} s."
                " `millstream queries` shows the state and the last error; the logs say more."
            )
        if left and now - told > _TELL_S:
            progress(_words(left))
            told = now
        stop.wait(_EVERY_S)
    return False


def _words(left: Mapping[str, int]) -> str:
    return ", ".join(f"{group} has {count:,} events to go" for group, count in sorted(left.items()))


def _check_queries(kafka: Kafka, app: str, left: Mapping[str, int]) -> None:
    """Raise for a query that has failed for good: it will never reach the end."""
    for (kind, name), facts in read(kafka, app).items():
        if kind == "query" and facts.get("state") == "failed" and f"{app}.{name}" in left:
            raise MillstreamError(
                f"the results are not complete: the query {name} failed: {facts.get('error')}. {_words(left)}."
                " The log of spark says more."
            )


def _left(kafka: Kafka, wanted: Mapping[str, set[str]], candidates: set[str]) -> dict[str, int]:
    """Look once. Positions are read before ends, so that "at the end" is never claimed too early."""
    lags = all_lags(kafka)
    existing = candidates & set(topic_names(kafka))
    readers = {topic: {lag.group for lag in lags if lag.topic == topic} for topic in existing}
    delivery = {group: {topic} for topic, groups in readers.items() for group in groups or {f"the delivery of {topic}"}}
    everything = {**wanted, **{g: topics | wanted.get(g, set()) for g, topics in delivery.items()}}
    ends = end_offsets(kafka, sorted(set().union(*everything.values())))
    return behind(everything, ends, lags)
