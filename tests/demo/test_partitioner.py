"""The partitioner agrees with Kafka's own: its published test vectors, and librdkafka's murmur2 in a running client."""

import pytest

from millstream.demo.partitioner import murmur2, partition_of, partition_without_key


@pytest.mark.parametrize(
    ("data", "signed"),
    [  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_equals_kafkas(data, signed):
    assert murmur2(data) == signed & 0xFFFFFFFF


def test_partition_ignores_the_sign():
    assert partition_of(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000


def test_without_a_key_the_identity_decides():
    spread = [partition_without_key(f"UA {n} EWR 1", 2) for n in range(1000)]
    assert 400 < sum(spread) < 600
    assert partition_without_key("UA 1 EWR 1", 2) == partition_without_key("UA 1 EWR 1", 2)
