"""The codecs: what others write is read, damage is refused, nothing unpacks to more than it may."""

import gzip

import cramjam
import pytest

from millstream.protocol.compression import (
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    CompressionError,
    TooLarge,
    check_framing,
    compress,
    decompress,
)

PACKED = [GZIP, SNAPPY, LZ4, ZSTD]
TEXT = b"some text " * 10_000


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_does_not_go_off(codec):
    bomb = compress(codec, bytes(10_000_000))
    with pytest.raises(TooLarge, match="more than the 1000000 bytes"):
        decompress(codec, bomb, 1_000_000)
    assert len(decompress(codec, bomb, 10_000_000)) == 10_000_000
    with pytest.raises(TooLarge):
        decompress(codec, bomb, 9_999_999)


@pytest.mark.parametrize("codec", PACKED)
def test_damaged_frames(codec):
    packed = bytes(compress(codec, b"some text " * 100))
    for broken in (b"", b"\x00" * 20, b"BAD" * 20, packed[: len(packed) // 2], packed[:-3]):
        with pytest.raises(CompressionError, match="damaged"):
            decompress(codec, broken)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (GZIP, -1),
        (GZIP, 1),
        (GZIP, 9),
        (LZ4, 1),
        (LZ4, 9),
        (LZ4, 17),
        (ZSTD, -131072),
        (ZSTD, 1),
        (ZSTD, 22),
        (SNAPPY, None),
    ],
)
def test_every_level_that_kafka_has(codec, level):
    packed = compress(codec, TEXT, level)
    check_framing(codec, packed)
    assert bytes(decompress(codec, packed)) == TEXT


def test_levels_make_a_difference():
    text = b"".join(b"%d " % (i * i) for i in range(20_000))
    for codec, low, high in ((GZIP, 1, 9), (LZ4, 1, 17), (ZSTD, -5, 19)):
        assert len(compress(codec, text, low)) > len(compress(codec, text, high))


def test_snappy_with_and_without_framing():
    assert bytes(decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))) == TEXT
    assert compress(SNAPPY, TEXT)[:8] == b"\x82SNAPPY\x00"
    assert bytes(decompress(SNAPPY, compress(SNAPPY, TEXT))) == TEXT


def test_other_writers_frames():
    assert bytes(decompress(GZIP, gzip.compress(TEXT))) == TEXT
    streamed = cramjam.zstd.Compressor()
    streamed.compress(TEXT)
    assert bytes(decompress(ZSTD, bytes(streamed.finish()))) == TEXT


def test_lz4_has_the_header_of_kafkas_own_writer():
    """Version 1, independent blocks (Lz4BlockOutputStream); Kafka refuses blocks that depend on each other."""
    packed = bytes(compress(LZ4, TEXT))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0xE0 == 0x60


def test_lz4_that_some_clients_cannot_read():
    linked = bytes(cramjam.lz4.Compressor(block_linked=True).finish())
    with pytest.raises(CompressionError, match="depend on each other"):
        check_framing(LZ4, linked)
    for one in (compress(LZ4, TEXT), cramjam.lz4.Compressor(content_checksum=True, block_linked=False).finish()):
        check_framing(LZ4, bytes(one))
        with pytest.raises(CompressionError, match="one frame"):
            check_framing(LZ4, bytes(one) + bytes(compress(LZ4, TEXT)))


def test_a_second_gzip_member_is_refused():
    """Java's clients read on, librdkafka's stop."""
    with pytest.raises(CompressionError, match="second member"):
        decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"))
