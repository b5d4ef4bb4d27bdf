"""Names: of the topics and groups that Millstream makes up, and the rules for those that users give."""

from __future__ import annotations

import re

from millstream.settings import MillstreamError

STATUS = "_millstream.status"
SCHEMAS = "_millstream.schemas"
LAG = "_millstream.lag"
DEAD_LETTERS = "dead_letters"  # the query that collects what could not be read

# Fits a PostgreSQL schema, a topic's prefix and a folder alike.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
# Kafka's rule for topic names (org.apache.kafka.common.internals.Topic).
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def dead_letters(app: str) -> str:
    """Return the topic of an application's events that could not be read."""
    return f"{app}.{DEAD_LETTERS}"


def group(app: str, query: str) -> str:
    """Return the consumer group that holds a query's position."""
    return f"{app}.{query}"


def candidates(app: str, query: str) -> str:
    """Return the internal topic in which Spark leaves rows that `deliver` passes on, each once."""
    return f"_{app}.{query}"


def delivery_group(app: str, query: str) -> str:
    """Return the consumer group that holds the position of a delivery in its candidates."""
    return f"{app}.{query}.deliver"


def check_name(what: str, name: object) -> str:
    """Return `name` if it can be `what`, "an application name" for one; raises MillstreamError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise MillstreamError(
            f"expected {what} of lower-case letters, digits and '_', a letter first (at most 48), got {name!r}."
        )
    return name


def check_topic(name: object) -> str:
    """Return `name` if it is a legal topic name; raises MillstreamError otherwise."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise MillstreamError(
            f"expected a topic name of letters, digits, '.', '_' and '-' (at most 249), got {name!r}."
        )
    return name
