"""What an event is: a small immutable typed record with a time, its fields, and its JSON form."""

from millstream.event.duration import duration
from millstream.event.event import Event, decode, encode
from millstream.event.fields import Field, fields

__all__ = ["Event", "Field", "decode", "duration", "encode", "fields"]
