"""Which partition a message goes to: Kafka's default partitioner, computed here so that a replay's order is known beforehand."""

from __future__ import annotations

from functools import lru_cache
from zlib import crc32

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
MAX_CACHED_KEYS = 10_000  # the demo has some 4,000 aircraft; more keys than this are computed again


@lru_cache(MAX_CACHED_KEYS)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key as Java clients choose it (its BuiltInPartitioner)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partition_without_key(identity: str, partitions: int) -> int:
    """Return the partition of a message without a key: spread evenly, and always the same for the same event."""
    return crc32(identity.encode()) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, unsigned (org.apache.kafka.common.utils.Utils.murmur2)."""
    size = len(data)
    h = (_SEED ^ size) & _MASK
    for i in range(0, size - size % 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if rest := data[size - size % 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
