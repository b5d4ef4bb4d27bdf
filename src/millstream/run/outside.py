"""An application from outside, in Python: events sent to its topics, views read. `Topic.send` and `App.read` call this."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec

from millstream import stores
from millstream.app.inputs import Topic
from millstream.app.query import StoredTable
from millstream.client.sender import SendError, forget, sender
from millstream.event import Event
from millstream.run.home import recall
from millstream.run.runfile import current
from millstream.settings import Kafka, MillstreamError, Settings, Unreachable

if TYPE_CHECKING:
    from millstream.stores.store import Rows

MAX_SHOWN = 120  # characters of an event in a message
_POLL_S = 0.1
START_S = 60.0  # how long what is being started in the data folder may take to have an address


def send(topic: Topic, events: Iterable[Event], key: str | bytes | None, settings: Settings | None) -> int:
    """Send events to a topic, which is made if it is missing, and return how many, once the log has acknowledged each."""
    kafka = _log(settings)
    try:
        to = sender(kafka)
        needed = topic.topic
        to.ensure(needed.name, needed.partitions, needed.config)
        return to.send(topic.name, messages(topic, events, key))
    except SendError:
        forget(kafka)
        raise
    except Unreachable as error:
        forget(kafka)
        raise Unreachable(
            f"topic {topic.name!r}: no log answers at {kafka.bootstrap}. Start the application (`millstream run FILE`), or say"
            " where the log is: MILLSTREAM_KAFKA=HOST:PORT, or kafka in millstream.toml."
        ) from error


def messages(
    topic: Topic, events: Iterable[Event], key: str | bytes | None = None
) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield events as (key, value). Raises MillstreamError at one that the topic does not take."""
    for event in events:
        if not isinstance(event, topic.event):
            raise MillstreamError(
                f"topic {topic.name!r} takes {topic.event.__name__}(…), got {type(event).__name__}: {_shown(event)}"
            )
        try:
            value = topic.format.encode(event)
        except (TypeError, ValueError) as error:  # half a surrogate pair in a text, for one
            raise MillstreamError(f"topic {topic.name!r}: {_shown(event)} cannot be written: {error}") from error
        if key is not None:
            yield key.encode() if isinstance(key, str) else key, value
        else:
            yield _key(getattr(event, topic.key) if topic.key else None), value


def read(
    table: StoredTable, settings: Settings | None, *, limit: int | None, where: Mapping[str, object] | None
) -> Rows:
    """Return the rows of a view. Raises MillstreamError where no store of views is known, or it has no such view."""
    given = settings or Settings.load()
    if not given.postgres:
        given = replace(given, postgres=_address(given, "postgres"))
    if not given.postgres:
        raise MillstreamError(
            f"the view {table.app}.{table.name} cannot be read: {_nothing(given, 'POSTGRES=CONNINFO')}"
        )
    return stores.read(given, table.app, table.name, limit=limit, where=where, store=table.store)


def _log(settings: Settings | None) -> Kafka:
    given = settings or Settings.load()
    if given.kafka:
        return given.kafka
    if address := _address(given, "kafka"):
        return Kafka(address)
    raise MillstreamError(f"no log is known: {_nothing(given, 'KAFKA=HOST:PORT')}")


def _address(settings: Settings, what: Literal["kafka", "postgres"]) -> str:
    """Return the address of what runs in the data folder, once it has one, or what its last run was given; "" for none."""
    deadline = time.monotonic() + START_S
    while True:
        running, home = current(settings.data), recall(settings.data)
        found = (running.addresses.get(what, "") if running else "") or getattr(home, what)
        if found or running is None or time.monotonic() > deadline:
            return str(found)
        time.sleep(_POLL_S)


def _nothing(settings: Settings, variable: str) -> str:
    return (
        f"nothing runs in {settings.data.absolute()}. Type `millstream run FILE` there, and this again in the same folder;"
        f" or say where it is: MILLSTREAM_DATA=DIR of a running application, MILLSTREAM_{variable}, or settings=ms.Settings(…)."
    )


def _key(value: object) -> bytes | None:
    """A key as Spark writes it: the bare text of a value."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value).strip(b'"')


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
