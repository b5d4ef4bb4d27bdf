"""What a batch must be like to be appended: the checks that come before a byte is written.

The rules and their codes are those of Kafka's UnifiedLog.analyzeAndValidateRecords and LogValidator, for producers
of record batch version 2; older formats are refused with INVALID_RECORD as Kafka 4 does.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from millstream.log.config import FOREVER, TopicConfig
from millstream.log.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompression,
)
from millstream.log.scan import SMALLEST, Head
from millstream.protocol.records import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_UNCOMPRESSED,
    OVERHEAD,
    ZSTD,
    Record,
    RecordsError,
    check,
    records,
    set_max_timestamp,
)

_unpack: Final = HEADER.unpack_from


def split(view: memoryview) -> list[tuple[memoryview, Head]]:
    """The batches in `view` with their headers; CorruptMessage or InvalidRecord when they do not fill it exactly."""
    found = []
    position = 0
    total = len(view)
    while position < total:
        left = total - position
        if left < HEADER_SIZE:
            # Formats 0 and 1 have the magic at the same place; their smallest message is shorter than our header.
            if left > 16 and view[position + 16] < MAGIC:
                raise _old_format(view[position + 16])
            raise CorruptMessage(f"{left} bytes cannot hold a batch: its header alone has {HEADER_SIZE}", position)
        head: Head = _unpack(view, position)  # type: ignore[assignment]
        if head[3] != MAGIC:
            if head[3] in (0, 1):
                raise _old_format(head[3])
            raise CorruptMessage(f"a batch of magic {head[3]}: expected {MAGIC}", position)
        size = head[1] + OVERHEAD
        if head[1] < SMALLEST or size > left:
            raise CorruptMessage(f"a batch announces {size} bytes, {left} came", position)
        found.append((view[position : position + size], head))
        position += size
    if not found:
        raise InvalidRecord("an append needs at least one record batch")
    return found


def _old_format(magic: int) -> InvalidRecord:
    return InvalidRecord(
        f"a message of the old format {magic}: expected record batches of format 2 (producers since Kafka 0.11)"
    )


def examine(batch: memoryview, head: Head, config: TopicConfig, now: int, internal: bool) -> Head:
    """Raise the LogError that Kafka has for the first rule that the batch breaks; the header when there is none.

    Compressed batches stay opaque, except where the topic's settings need a look at each record. Of the others all
    record lengths are walked, and a wrong largest timestamp is corrected in `batch`, as Kafka does. `internal` is for
    the log's own writers (coordinators), who may write control batches.
    """
    size = len(batch)
    if size > config.max_message_bytes and not internal:
        raise MessageTooLarge(f"a batch of {size} bytes: max.message.bytes allows {config.max_message_bytes}")
    if crc32c(batch[CRC_START:]) != head[4]:
        raise CorruptMessage(f"a batch of {size} bytes has a wrong checksum: it changed on its way, send it again")
    attributes, delta, count = head[5], head[6], head[12]
    if internal:
        return head
    if count <= 0 or delta != count - 1:
        raise InvalidRecord(f"a batch of {count} records with a last offset delta of {delta}: expected count - 1")
    codec = attributes & CODEC_MASK
    if codec > ZSTD:
        raise UnsupportedCompression(f"codec {codec} is unknown: expected 0 to {ZSTD}")
    if attributes & CONTROL:
        raise InvalidRecord("only the transaction coordinator may write control batches")
    if head[9] >= 0 and head[11] < 0:
        raise InvalidRecord(f"a batch of producer {head[9]} with the sequence number {head[11]}")
    if attributes & DELETE_HORIZON:
        raise InvalidRecord("a batch with a delete horizon: only compaction sets it")
    if codec == 0:
        try:
            latest = check(batch)
        except RecordsError as error:
            raise InvalidRecord(str(error)) from None
        if latest != head[8] and not config.log_append_time:
            set_max_timestamp(batch, latest)
            head = HEADER.unpack_from(batch)  # type: ignore[assignment]
    if config.log_append_time:
        if attributes & LOG_APPEND_TIME:
            raise InvalidTimestamp("a producer's batch claims log append time, which only the log may set")
    elif head[8] - now > config.timestamp_after_max_ms:
        raise _too_new(head[8], now, config)
    if (
        config.compact
        or (config.timestamp_before_max_ms < FOREVER and not config.log_append_time)
        or (codec and config.max_decompressed_bytes < MAX_UNCOMPRESSED)
    ):
        _look_inside(batch, config, now)
    return head


def _look_inside(batch: memoryview, config: TopicConfig, now: int) -> None:
    oldest = now - config.timestamp_before_max_ms if not config.log_append_time else -1
    try:
        for record in records(batch):
            if config.compact and record.key is None:
                raise InvalidRecord(
                    "a message without a key in a compacted topic: compaction keeps the newest message of each key"
                )
            if _size(record) > config.max_decompressed_bytes:
                raise InvalidRecord(
                    f"a message of {_size(record)} bytes: max.decompressed.message.bytes allows "
                    f"{config.max_decompressed_bytes}"
                )
            if -1 < record.timestamp < oldest:
                raise InvalidTimestamp(
                    f"timestamp {record.timestamp} is {now - record.timestamp} ms old: "
                    f"message.timestamp.before.max.ms allows {config.timestamp_before_max_ms}"
                )
            if record.timestamp - now > config.timestamp_after_max_ms and not config.log_append_time:
                raise _too_new(record.timestamp, now, config)
    except RecordsError as error:
        raise InvalidRecord(str(error)) from None


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _too_new(timestamp: int, now: int, config: TopicConfig) -> InvalidTimestamp:
    return InvalidTimestamp(
        f"timestamp {timestamp} is {timestamp - now} ms ahead of the log's clock: "
        f"message.timestamp.after.max.ms allows {config.timestamp_after_max_ms}"
    )
