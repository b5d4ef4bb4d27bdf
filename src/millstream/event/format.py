"""How an event becomes the bytes of a message and back: a format, chosen per topic."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from millstream.event.event import Event, decode, encode

E = TypeVar("E", bound=Event)


class Format(Protocol):
    """A format of messages. A new one is a class that fulfils this and a module that reads it on Spark.

    name: what people call it.
    spark: the module that reads it on Spark, with two functions over frames of messages (the Kafka connector's columns):
    `events(messages, topic)` returns a column per field of the event and their cause (`spark.provenance.of_message()`), without
    what cannot be read;
    `malformed(messages, topics)` returns what cannot: topic, partition, offset, timestamp, key, value, reason.
    """

    name: ClassVar[str]
    spark: ClassVar[str]

    def encode(self, event: Event) -> bytes:
        """Return the event as a message's value."""

    def decode(self, kind: type[E], data: bytes) -> E:
        """Return the event that a message's value holds. Raises ValueError that says what is wrong."""


class Json:
    """One JSON object per message, strictly: what is not of the declared type is refused."""

    name: ClassVar[str] = "JSON"
    spark: ClassVar[str] = "millstream.spark.inputs.json"

    def encode(self, event: Event) -> bytes:
        """See Format."""
        return encode(event)

    def decode(self, kind: type[E], data: bytes) -> E:
        """See Format."""
        return decode(kind, data)


JSON = Json()
