"""Waiting until a log answers: for processes that start beside it, and for a clear word when it never does."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream.client.connect import config, is_refusal, refused, unreachable
from millstream.settings import Kafka

_ATTEMPT_S = 1.0  # how long one question waits, so that a refusal is noticed in between


def wait_for_kafka(kafka: Kafka, timeout: float = 30.0) -> None:
    """Return when the log answers.

    Raises MillstreamError after `timeout` seconds without an answer, or at once when it answers and refuses the credentials.
    """
    refusals: list[KafkaError] = []
    client = AdminClient(
        config(kafka, reconnect_backoff_max_ms=250)
        | {"error_cb": lambda e: refusals.append(e) if is_refusal(e) else None}
    )
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            client.list_topics(timeout=max(0.1, min(_ATTEMPT_S, left)))
            return
        except KafkaException as error:
            client.poll(0)  # runs error_cb
            if refusals or is_refusal(error.args[0]):
                raise refused(kafka, (refusals or [error.args[0]])[0].str()) from error
            if time.monotonic() >= deadline:
                raise unreachable(kafka) from error
