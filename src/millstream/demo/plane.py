"""The plane that gets a new model while the demo runs: later departures must show it, without any restart."""

from __future__ import annotations

import threading
import time

import msgspec
import psycopg
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from millstream.client.admin import end_offsets
from millstream.client.consumer import consumer as open_consumer
from millstream.monitor.lag import group_lag
from millstream.monitor.status import read
from millstream.settings import Kafka, MillstreamError, redact

NEW_MODEL = "MILLSTREAM 2"
TOPIC = "planes"
QUERY = "enriched"  # the query of flights.py in whose results the change shows
CAPTURE_S = 120.0  # how long the change may take to reach the topic before the demo says that capture is stuck
DATABASE_S = 30.0  # how long a database that was killed may take to come back
SEEN_S = 20.0  # how long the change waits for the query that shows it
_POLL_S = 0.2
_FETCH_MS = 200


def set_model(conninfo: str, tailnum: str, model: str, *, only_if: str | None = None) -> bool:
    """Give a plane a model in the source database, if it has another (or has `only_if`); return whether it was changed.

    A database that is away is waited for. Raises MillstreamError when it stays away, refuses, or has no such plane.
    """
    deadline = time.monotonic() + DATABASE_S
    while True:
        try:
            return _set_model(conninfo, tailnum, model, only_if)
        except psycopg.Error as error:
            if not isinstance(error, psycopg.OperationalError) or time.monotonic() > deadline:
                raise MillstreamError(
                    f"the plane {tailnum} cannot be changed in {redact(conninfo)}: {str(error).strip()}."
                ) from error
        time.sleep(_POLL_S)


def _set_model(conninfo: str, tailnum: str, model: str, only_if: str | None) -> bool:
    with psycopg.connect(conninfo) as connection:
        if connection.execute("SELECT FROM public.planes WHERE tailnum = %s", (tailnum,)).fetchone() is None:
            raise MillstreamError(f"the table planes in {redact(conninfo)} has no plane {tailnum!r}; was it emptied?")
        done = connection.execute(
            "UPDATE public.planes SET model = %s WHERE tailnum = %s AND model IS DISTINCT FROM %s"
            " AND (%s::text IS NULL OR model = %s)",
            (model, tailnum, model, only_if, only_if),
        )
        return done.rowcount > 0


def wait_for_query(
    kafka: Kafka, app: str, query: str, topic: str, stop: threading.Event, *, timeout: float = SEEN_S
) -> bool:
    """Return whether the query, if it runs, has worked off what the topic holds, at the latest after `timeout` seconds.

    What was sent before the change then shows the old model. Nothing depends on it: a query that is slow is not waited for.
    """
    deadline = time.monotonic() + timeout
    while not stop.is_set():
        if read(kafka, app).get(("query", query), {}).get("state") not in ("starting", "running"):
            return False
        seen = {(lag.topic, lag.partition): lag.committed for lag in group_lag(kafka, f"{app}.{query}")}
        if all(seen.get(partition, 0) >= end for partition, end in end_offsets(kafka, [topic]).items()):
            return True
        if time.monotonic() > deadline:
            return False
        stop.wait(_POLL_S)
    return False


def wait_for_model(
    kafka: Kafka, tailnum: str, model: str, stop: threading.Event, *, topic: str = TOPIC, timeout: float = CAPTURE_S
) -> None:
    """Return when the plane's latest row in the topic of captured planes has the model, or `stop` is set.

    Raises MillstreamError when it has not after `timeout` seconds, saying what is there instead.
    """
    key = {"tailnum": tailnum}
    latest: object = "no row"
    consumer = open_consumer(kafka, "millstream.demo", enable_partition_eof=True, fetch_wait_max_ms=_FETCH_MS)
    deadline = time.monotonic() + timeout
    try:
        unread: set[int | None] = {p for _, p in end_offsets(kafka, [topic])}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in unread if p is not None])
        while not stop.is_set():
            message = consumer.poll(_POLL_S)
            if message is not None and (problem := message.error()):
                if problem.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
            elif message is not None and _decoded(message.key()) == key:
                latest = _model(message.value())
            # The topic's past is read to its end first: an older row may have had the model before.
            if latest == model and not unread:
                return
            if time.monotonic() > deadline:
                raise MillstreamError(
                    f"the topic {topic!r} does not show the plane {tailnum} as {model!r} after {timeout:.0f} s; it shows"
                    f" {latest!r}. Is capture running? See capture's log and `millstream queries`."
                )
    finally:
        consumer.close()


def _decoded(data: bytes | None) -> object:
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return None


def _model(value: bytes | None) -> object:
    """Return the model in a Debezium envelope's new row; None for a deleted row."""
    envelope = _decoded(value)
    after = envelope.get("after") if isinstance(envelope, dict) else None
    return after.get("model") if isinstance(after, dict) else None
