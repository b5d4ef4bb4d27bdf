"""Batches that unpack to far more than they are, put into a partition's segment as a broker that does not look would have."""

from __future__ import annotations

from pathlib import Path

from millstream.protocol.records import NO_PRODUCER, ZSTD, Header, put_varint, wrap

SMALLEST = b"\x0c\x00\x00\x00\x01\x00\x00"  # a record with no key, an empty value and no headers


def of_records(base: int, count: int) -> bytes:
    """A batch of `count` records of seven bytes: librdkafka makes hundreds of bytes of each."""
    return _batch(base, SMALLEST * count, count)


def of_one_value(base: int, size: int) -> bytes:
    """A batch of one record whose value is `size` zeros."""
    piece = bytearray(b"\0\0\0\1")  # attributes, timestamp, offset, no key
    put_varint(piece, size)
    body = bytearray()
    put_varint(body, len(piece) + size + 1)
    return _batch(base, body + piece + bytes(size + 1), 1)


def plant(folder: Path, topic: str, batch: bytes) -> None:
    """Append a batch to the active segment of partition 0; the broker must have been killed, so that it looks at its end."""
    segment = max((folder / "topics" / topic / "0").glob("*.log"))
    with segment.open("ab") as file:
        file.write(batch)


def _batch(base: int, body: bytes | bytearray, count: int) -> bytes:
    return bytes(wrap(Header(base, 0, 0, 2, 0, ZSTD, count - 1, 1, 1, NO_PRODUCER, -1, -1, count), body, count))
