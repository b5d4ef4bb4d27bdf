"""Where things are and what is secret: addresses, the data folder, and the errors that users see."""

from millstream.settings.addresses import Kafka, redact
from millstream.settings.errors import MillstreamError, Unreachable
from millstream.settings.load import Settings

__all__ = ["Kafka", "MillstreamError", "Settings", "Unreachable", "redact"]
