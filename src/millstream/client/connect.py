"""Connections to the log: the client settings that every part shares, one admin client per log, and errors in words."""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millstream.settings import Kafka, MillstreamError, Unreachable

T = TypeVar("T")

TIMEOUT_S = 30.0  # how long one request to the log may take before the user hears that nothing answers
MAX_ADMIN_CLIENTS = 4  # each keeps a thread and connections; more logs at once than this and the oldest is let go
_LOG_LEVEL_CRITICAL = 2  # librdkafka prints every refused connection on stderr; what fails is in our own errors

_UNREACHABLE = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
}
_NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._PREV_IN_PROGRESS,
}
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}


_clients: OrderedDict[tuple[object, ...], AdminClient] = OrderedDict()
_lock = threading.Lock()
atexit.register(
    _clients.clear
)  # while their threads may still take the interpreter's lock, which they need in order to end


def config(kafka: Kafka, **more: object) -> dict[str, Any]:
    """Return the configuration of a confluent-kafka client: the address, our defaults, the user's options, then `more`.

    Keywords use `_` where the property has a dot, as in `Kafka.client`.
    """
    defaults: dict[str, Any] = {
        "client.id": "millstream",
        "log_level": _LOG_LEVEL_CRITICAL,
        "reconnect.backoff.max.ms": 1000,  # librdkafka's 10 s would hide a broker that came back long ago
        "topic.metadata.propagation.max.ms": 5000,
        # librdkafka's default starts over from the bootstrap address at every refused connection, and after some seconds without
        # a broker it no longer finds back: a request then hangs although the broker has long returned.
        "metadata.recovery.strategy": "none",
    }
    return defaults | kafka.client(**more)


def admin(kafka: Kafka) -> AdminClient:
    """Return the admin client for a log; one per address, as each costs a thread and a connection."""
    identity = (os.getpid(), kafka.bootstrap, *sorted(kafka.options.items()))  # a fork must not share its parent's
    with _lock:
        if identity not in _clients:
            _clients[identity] = AdminClient(config(kafka))
        _clients.move_to_end(identity)
        while len(_clients) > MAX_ADMIN_CLIENTS:
            _clients.popitem(last=False)
        return _clients[identity]


def result(future: Future[T], kafka: Kafka, what: str, timeout: float = TIMEOUT_S) -> T:
    """Wait for an admin request and return its result.

    Raises MillstreamError that begins with `what` ("topic 'x' cannot be created"), or says that no broker answers.
    """
    try:
        return future.result(
            timeout + 5
        )  # librdkafka ends the request itself at `timeout`; this only guards against its bugs
    except KafkaException as error:
        raise explain(error.args[0], kafka, what) from error
    except TimeoutError as error:
        raise unreachable(kafka) from error


def explain(error: KafkaError, kafka: Kafka, what: str) -> MillstreamError:
    """Return the MillstreamError for a client error: nobody answers, access refused, or `what` with Kafka's own reason."""
    if error.code() in _UNREACHABLE:
        return unreachable(kafka)
    if error.code() in _NOT_YET:
        return Unreachable(
            f"{what}: {error.str()}. The log at {kafka.bootstrap} is not ready yet; try again in a moment."
        )
    if error.code() in _REFUSED:
        return refused(kafka, error.str())
    return MillstreamError(f"{what}: {error.str()}")


def code(error: MillstreamError) -> int | None:
    """Return Kafka's error code behind an error of `explain` or `result`, or None when there is none."""
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None


def unreachable(kafka: Kafka) -> Unreachable:
    """Return the error for a log that does not answer."""
    return Unreachable(
        f"no Kafka broker answers at {kafka.bootstrap}; start one with `millstream broker` or give --kafka HOST:PORT."
    )


def refused(kafka: Kafka, reason: str) -> MillstreamError:
    """Return the error for a log that answers and does not let us in."""
    return MillstreamError(
        f"the Kafka broker at {kafka.bootstrap} refuses the connection: {reason}."
        " Check the user, the password and security.protocol under [kafka] in millstream.toml."
    )


def is_refusal(error: KafkaError) -> bool:
    """Tell whether waiting cannot help: wrong credentials or an untrusted certificate."""
    return error.code() in _REFUSED
