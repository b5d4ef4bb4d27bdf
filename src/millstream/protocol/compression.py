"""The codecs of record batches: bytes packed in the framing that Kafka's clients expect, and unpacked within a bound.

Source: Kafka's GzipCompression, SnappyCompression, Lz4Compression and ZstdCompression. All codecs let other threads run.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from millstream.protocol.walk import RecordsError

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_UNCOMPRESSED: Final = 128 * 1024 * 1024
"""Largest batch that is unpacked, in bytes: stops a small frame that unpacks to gigabytes. Larger ones are refused."""

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_BLOCK: Final = 32 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_PIECE: Final = 1024 * 1024
# Kafka's own default level, with which it does not take the slow compressor (Lz4BlockOutputStream).
_LZ4_FAST: Final = 9
_LZ4_INDEPENDENT, _LZ4_BLOCK_SUM, _LZ4_SIZE, _LZ4_CONTENT_SUM, _LZ4_DICTIONARY = 0x20, 0x10, 0x08, 0x04, 0x01
_LITTLE: Final = struct.Struct("<I")
_INT: Final = struct.Struct(">i")


class CompressionError(RecordsError):
    """Compressed data that is damaged."""


class TooLarge(RecordsError):
    """Compressed data that unpacks to more than is allowed."""


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """`data` in the framing that Kafka's clients expect of the codec; ValueError for an unknown codec.

    level: Kafka's compression.gzip.level (-1 to 9), compression.lz4.level (1 to 17) or compression.zstd.level
    (-131072 to 22); None is Kafka's default. Snappy has none.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        out = bytearray(_XERIAL + _INT.pack(1) + _INT.pack(1))
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_BLOCK])))
            out += _INT.pack(len(block)) + block
        return out
    if codec == LZ4:
        # Blocks that refer to earlier ones cannot be read by Java's clients (Lz4BlockInputStream).
        lz4 = cramjam.lz4.Compressor(level=0 if level in (None, _LZ4_FAST) else level, block_linked=False)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(bytes(data), level=level))
    raise ValueError(f"codec {codec} is unknown: expected 0 to 4 ({', '.join(CODECS)})")


def check_framing(codec: int, data: Buffer) -> None:
    """CompressionError for what some of Kafka's clients cannot unpack, or unpack differently, although it is not damaged.

    Source: Lz4BlockInputStream, and the LZ4 frame format (https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md).
    """
    if codec != LZ4 or len(data) < 7:
        return
    flags = data[4]
    if not flags & _LZ4_INDEPENDENT:
        raise CompressionError("the lz4 data has blocks that depend on each other, which Kafka's clients cannot read")
    position = 7 + (8 if flags & _LZ4_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    while position + 4 <= len(data):
        length = _LITTLE.unpack_from(data, position)[0] & 0x7FFF_FFFF
        position += 4
        if not length:
            position += 4 if flags & _LZ4_CONTENT_SUM else 0
            if position < len(data):
                raise CompressionError(f"{len(data) - position} bytes follow the lz4 frame: clients read one frame")
            return
        position += length + (4 if flags & _LZ4_BLOCK_SUM else 0)


def decompress(codec: int, data: Buffer, limit: int = MAX_UNCOMPRESSED) -> Buffer:
    """The records that `data` holds, unpacked; CompressionError when it is damaged, TooLarge above `limit` bytes."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gunzip(data, limit)
    if codec == SNAPPY:
        return _unsnappy(bytes(data), limit)
    if codec == LZ4:
        return _bounded("lz4", cramjam.lz4.decompress_into, bytes(data), limit)
    if codec == ZSTD:
        return _bounded("zstd", cramjam.zstd.decompress_into, bytes(data), limit)
    raise RecordsError(f"codec {codec} is unknown: expected 0 to 4 ({', '.join(CODECS)})")


def _gunzip(data: Buffer, limit: int) -> Buffer:
    unpacker = zlib.decompressobj(wbits=31)
    out = bytearray()
    rest: Buffer = data
    try:
        while not unpacker.eof:
            piece = unpacker.decompress(rest, min(_GZIP_PIECE, limit + 1 - len(out)))
            out += piece
            if len(out) > limit:
                raise _too_large("gzip", limit)
            rest = unpacker.unconsumed_tail
            if not piece and not rest and not unpacker.eof:
                raise CompressionError("the gzip data is damaged: it ends too soon")
    except zlib.error as error:
        raise CompressionError(f"the gzip data is damaged: {error}") from None
    if unpacker.unused_data.startswith(_GZIP_MAGIC):
        # Java reads on, librdkafka does not.
        raise CompressionError("the gzip data has a second member, which clients read differently")
    return out


def _unsnappy(data: bytes, limit: int) -> Buffer:
    out = bytearray()
    try:
        if not data.startswith(_XERIAL):
            return _snappy_block(data, limit, limit)
        position = len(_XERIAL) + 8
        while position < len(data):
            size = _INT.unpack_from(data, position)[0]
            position += 4
            if size < 0 or position + size > len(data):
                raise CompressionError(f"the snappy data is damaged: a block of {size} bytes")
            out += _snappy_block(data[position : position + size], limit - len(out), limit)
            position += size
    except struct.error:
        raise CompressionError("the snappy data is damaged: it ends too soon") from None
    return out


def _snappy_block(data: bytes, room: int, limit: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > room:
            raise _too_large("snappy", limit)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"the snappy data is damaged: {error}") from None


def _bounded(name: str, unpack: Callable[[bytes, bytearray], int], data: bytes, limit: int) -> Buffer:
    # These frames need not say how large their content is: room is multiplied until it fits, up to the limit.
    room = min(limit, max(64 * 1024, 8 * len(data)))
    while True:
        out = bytearray(room)
        try:
            return memoryview(out)[: unpack(data, out)]
        except (cramjam.DecompressionError, OSError, ValueError) as error:
            if "failed to write whole buffer" not in str(error):
                raise CompressionError(f"the {name} data is damaged: {error}") from None
            if room >= limit:
                raise _too_large(name, limit) from None
            room = min(limit, room * 8)


def _too_large(name: str, limit: int) -> TooLarge:
    return TooLarge(f"the {name} data unpacks to more than the {limit} bytes that are allowed")
