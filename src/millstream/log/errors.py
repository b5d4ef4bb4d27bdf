"""What the log refuses, as exceptions that carry Kafka's error codes.

Codes: https://kafka.apache.org/protocol#protocol_error_codes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class LogError(Exception):
    """Something that the log refuses or cannot do; `code` is Kafka's number for it, the message says what to do.

    `records` are those of a batch that are to blame: their number in it, and what is wrong with each.
    """

    code: ClassVar[int] = -1
    records: Sequence[tuple[int, str]] = ()


class UnreadableCompression(LogError):
    """A batch that cannot be unpacked. Kafka has no code of its own for it: UNKNOWN_SERVER_ERROR."""


class OffsetOutOfRange(LogError):
    """A read before the log's start or behind its end."""

    code = 1


class CorruptMessage(LogError):
    """Bytes whose checksum or lengths are wrong: in an append they are refused, on disk they are never served.

    `position` is the byte in the file or buffer where the damaged batch begins.
    """

    code = 2

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class UnknownTopic(LogError):
    """There is no such topic or partition (any more)."""

    code = 3


class MessageTooLarge(LogError):
    """A batch is larger than max.message.bytes."""

    code = 10


class InvalidTopic(LogError):
    """A name that Kafka does not allow for a topic."""

    code = 17


class BatchesTooLarge(LogError):
    """An append is larger than a segment."""

    code = 18


class InvalidTimestamp(LogError):
    """A timestamp outside of message.timestamp.before.max.ms and message.timestamp.after.max.ms."""

    code = 32


class TopicExists(LogError):
    """A topic of this name exists already."""

    code = 36


class InvalidPartitions(LogError):
    """A number of partitions below one, or not above the present one."""

    code = 37


class InvalidConfig(LogError):
    """A setting's name is unknown, or its value is not allowed."""

    code = 40


class OutOfOrderSequence(LogError):
    """An idempotent producer's batch does not follow its last one."""

    code = 45


class InvalidProducerEpoch(LogError):
    """A newer producer with the same id has taken over: this one is fenced."""

    code = 47


class InvalidTransactionState(LogError):
    """A batch outside of a transaction from a producer that has one open."""

    code = 48


class TransactionCoordinatorFenced(LogError):
    """A marker from a transaction coordinator that has been replaced."""

    code = 52


class StorageError(LogError):
    """The disk refused a write, a read or an fsync. Retriable, unless the partition says that it has failed."""

    code = 56


class ArchiveError(StorageError):
    """The archive refused something, or is not reachable. It is tried again."""


class UnsupportedCompression(LogError):
    """A batch names a codec that does not exist."""

    code = 76


class InvalidRecord(LogError):
    """A batch that breaks a rule: an old format, a wrong count, a missing key in a compacted topic."""

    code = 87


class LogLocked(LogError):
    """Another process holds the folder."""


class UnknownFormat(LogError):
    """The folder was written by a later version of Millstream."""
