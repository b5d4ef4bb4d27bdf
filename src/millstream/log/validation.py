"""What a batch must be like to be appended: the checks that come before a byte is written.

The rules and their codes are those of Kafka's UnifiedLog.analyzeAndValidateRecords and LogValidator, for producers
of record batch version 2; older formats are refused with INVALID_RECORD as Kafka 4 does. Compressed batches are unpacked
to be checked, and packed again where the topic's compression.type says so.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.log.config import FOREVER, TopicConfig
from millstream.log.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    MessageTooLarge,
    UnreadableCompression,
    UnsupportedCompression,
)
from millstream.log.head import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CRC,
    LAST_DELTA,
    LENGTH,
    MAGIC_BYTE,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    RECORD_COUNT,
    Head,
)
from millstream.log.scan import SMALLEST
from millstream.protocol import compression, walk
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
    NONE,
    OVERHEAD,
    ZSTD,
    CompressionError,
    Header,
    RecordsError,
    TooLarge,
    set_max_timestamp,
    wrap,
)

_PACKING: Final = 4
"""Packing takes about so many times as long as unpacking."""
_LIMITS: Final = " (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
_unpack: Final = HEADER.unpack_from


class Prepared(NamedTuple):
    """Batches that were checked with the settings `config`: their bytes in one piece, and each of them with its header."""

    data: bytearray | memoryview
    batches: list[tuple[memoryview, Head]]
    config: TopicConfig

    def copy(self) -> Prepared:
        """The same in memory of its own."""
        view = memoryview(bytearray(self.data))
        return Prepared(view, split(view), self.config)


def prepare(
    data: bytearray | memoryview,
    config: TopicConfig,
    now: int,
    name: str,
    *,
    internal: bool = False,
    room: int = MAX_UNCOMPRESSED,
) -> Prepared:
    """Check the batches in `data`, to be appended to the partition `name`: the LogError of the first rule that one breaks.

    A wrong largest timestamp is corrected in `data`. `internal` is for the log's own writers (coordinators), who may write
    control batches. compression.TooLarge when it takes more than `room` bytes to unpack a batch: a caller that has to be quick
    asks with little room, and elsewhere again.
    """
    view = data if type(data) is memoryview else memoryview(data)
    found = split(view)
    packed = False
    for i, (batch, head) in enumerate(found):
        if len(batch) > config.max_message_bytes and not internal:
            raise _too_large(len(batch), config)
        if crc32c(batch[CRC_START:]) != head[CRC]:
            raise CorruptMessage(
                f"a batch of {len(batch)} bytes has a wrong checksum: it changed on its way, send it again"
            )
        if internal:
            continue
        _check_header(head)
        changed = _check_records(batch, head, config, now, name, room)
        if changed is not None:
            found[i] = changed
            packed = packed or changed[0] is not batch
    if packed:
        view = memoryview(bytearray().join(batch for batch, _ in found))
        found = split(view)
    return Prepared(view, found, config)


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
        if head[MAGIC_BYTE] != MAGIC:
            if head[MAGIC_BYTE] in (0, 1):
                raise _old_format(head[MAGIC_BYTE])
            raise CorruptMessage(f"a batch of magic {head[MAGIC_BYTE]}: expected {MAGIC}", position)
        length = head[LENGTH] + OVERHEAD
        if head[LENGTH] < SMALLEST or length > left:
            raise CorruptMessage(f"a batch announces {length} bytes, {left} came", position)
        found.append((view[position : position + length], head))
        position += length
    if not found:
        raise InvalidRecord("an append needs at least one record batch")
    return found


def _old_format(magic: int) -> InvalidRecord:
    return InvalidRecord(
        f"a message of the old format {magic}: expected record batches of format 2 (producers since Kafka 0.11)"
    )


def _check_header(head: Head) -> None:
    attributes, delta, count = head[ATTRIBUTES], head[LAST_DELTA], head[RECORD_COUNT]
    if count <= 0 or delta != count - 1:
        raise InvalidRecord(f"a batch of {count} records with a last offset delta of {delta}: expected count - 1")
    if attributes & CODEC_MASK > ZSTD:
        raise UnsupportedCompression(f"codec {attributes & CODEC_MASK} is unknown: expected 0 to {ZSTD}")
    if attributes & CONTROL:
        raise InvalidRecord("only the transaction coordinator may write control batches")
    if head[PRODUCER_ID] >= 0 and head[BASE_SEQUENCE] < 0:
        raise InvalidRecord(f"a batch of producer {head[PRODUCER_ID]} with the sequence number {head[BASE_SEQUENCE]}")
    if attributes & DELETE_HORIZON:
        raise InvalidRecord("a batch with a delete horizon: only compaction sets it")


def _check_records(
    batch: memoryview, head: Head, config: TopicConfig, now: int, name: str, room: int
) -> tuple[memoryview, Head] | None:
    """The batch and its header when one of them had to be changed, else None."""
    codec = head[ATTRIBUTES] & CODEC_MASK
    target = codec if config.codec is None else config.codec
    stamped = config.log_append_time
    oldest = -FOREVER if stamped or config.timestamp_before_max_ms == FOREVER else now - config.timestamp_before_max_ms
    newest = FOREVER if stamped else min(now + config.timestamp_after_max_ms, FOREVER)
    if codec and codec == target and config.trusts:
        if head[MAX_TIMESTAMP] > newest:
            wrong = _out_of_range(head[MAX_TIMESTAMP], head[BASE_OFFSET] + head[LAST_DELTA], now, config)
            raise InvalidTimestamp(wrong + _LIMITS)
        if stamped and head[ATTRIBUTES] & LOG_APPEND_TIME:
            raise _refused(_claims(head, []), head, config, now, name)
        return None
    bad: list[walk.Bad] = []
    data = _unpacked(batch, codec, target, room)
    largest = config.max_decompressed_bytes if codec else FOREVER
    try:
        latest = walk.check(
            data, head[RECORD_COUNT], head[BASE_TIMESTAMP], largest, oldest, newest, config.compact, bad
        )
    except RecordsError as error:
        raise InvalidRecord(f"{name}: {error}") from None
    if stamped and head[ATTRIBUTES] & LOG_APPEND_TIME:
        bad = _claims(head, bad)
    if bad:
        raise _refused(bad, head, config, now, name)
    if codec != target:
        return _packed(data, head, target, latest, config)
    if latest != head[MAX_TIMESTAMP] and not stamped:
        set_max_timestamp(batch, latest)
        return batch, _unpack(batch)  # type: ignore[return-value]
    return None


def _unpacked(batch: memoryview, codec: int, target: int, room: int) -> bytes:
    body = batch[HEADER_SIZE:]
    if codec == target == NONE:
        return bytes(body)
    if codec == compression.ZSTD and not len(body):
        return b""  # As Kafka's reader has it, in no other codec: no records, rather than damage.
    limit = room
    if codec != target and room < MAX_UNCOMPRESSED:
        limit = room // _PACKING
    if len(body) > limit:
        raise TooLarge(f"{len(body)} bytes, and room for {limit}")
    try:
        compression.check_framing(codec, body)
        return bytes(compression.decompress(codec, body, limit))
    except TooLarge as error:
        if room < MAX_UNCOMPRESSED:
            raise
        raise InvalidRecord(f"{error}: send smaller batches") from None
    except CompressionError as error:
        raise UnreadableCompression(str(error)) from None


def _packed(data: bytes, head: Head, target: int, latest: int, config: TopicConfig) -> tuple[memoryview, Head]:
    template = Header._make(head)._replace(attributes=head[ATTRIBUTES] & ~CODEC_MASK | target, max_timestamp=latest)
    batch = memoryview(wrap(template, data, head[RECORD_COUNT], config.level))
    if len(batch) > config.max_message_bytes:
        raise _too_large(len(batch), config)
    return batch, _unpack(batch)  # type: ignore[return-value]


def _claims(head: Head, bad: list[walk.Bad]) -> list[walk.Bad]:
    """The records of a batch that claims log append time, where only the log may give it, besides those that lack a key."""
    keyless = {number for number, _, _ in bad}
    count = min(head[RECORD_COUNT], walk.MAX_BAD)
    return sorted(bad + [(number, head[MAX_TIMESTAMP], False) for number in range(count) if number not in keyless])


def _refused(bad: list[walk.Bad], head: Head, config: TopicConfig, now: int, name: str) -> LogError:
    """The error of a batch some of whose records may not be taken; with Kafka's texts for each."""
    texts = []
    for number, timestamp, keyless in bad:
        if keyless:
            text = f"Compacted topic cannot accept message without key in topic partition {name}"
        elif config.log_append_time:
            text = (
                f"Invalid timestamp type in message {number}. Producer should not set timestamp type to LogAppendTime."
            )
        else:
            text = _out_of_range(timestamp, head[BASE_OFFSET] + number, now, config)
        texts.append((number, text))
    of_time = any(not keyless for _, _, keyless in bad)
    error = (InvalidTimestamp if of_time else InvalidRecord)(
        f"{len(bad)} of {head[RECORD_COUNT]} records are refused, the first of them: {texts[0][1]}"
        + (_LIMITS if of_time and not config.log_append_time else "")
    )
    error.records = texts
    return error


def _out_of_range(timestamp: int, offset: int, now: int, config: TopicConfig) -> str:
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp should be within "
        f"[{now - config.timestamp_before_max_ms}, {now + config.timestamp_after_max_ms}]"
    )


def _too_large(length: int, config: TopicConfig) -> MessageTooLarge:
    return MessageTooLarge(f"a batch of {length} bytes: max.message.bytes allows {config.max_message_bytes}")
