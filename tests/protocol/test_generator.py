"""The generator: Kafka's notations, and a message made from a definition that uses most of them."""

import sys
import types

import pytest

from millstream.protocol.generator.__main__ import module, ranges
from millstream.protocol.generator.definitions import Versions, parse, snake
from millstream.protocol.wire import DecodeError, EncodeError

DEFINITION = """
// A comment.
{
  "apiKey": 99, "type": "request", "name": "SampleRequest", "validVersions": "0-3", "flexibleVersions": "2+",
  "fields": [
    { "name": "Old", "type": "int8", "versions": "0", "ignorable": true },
    { "name": "Count", "type": "int32", "versions": "1+", "default": "-1" },
    { "name": "Name", "type": "string", "versions": "0+", "nullableVersions": "3+", "default": "x" },
    { "name": "Parts", "type": "[]Part", "versions": "0+", "fields": [
      { "name": "TopicId", "type": "uuid", "versions": "0+" },
      { "name": "Offsets", "type": "[]int64", "versions": "0+" },
      { "name": "Extra", "type": "string", "versions": "2+", "taggedVersions": "2+", "tag": 0, "default": "null",
        "nullableVersions": "2+" }
    ]}
  ]
}
"""


@pytest.fixture(scope="module")
def sample():
    made = types.ModuleType("sample")
    sys.modules["sample"] = made
    exec(compile(module("Sample", [parse(DEFINITION)]), "sample", "exec"), made.__dict__)
    yield made
    del sys.modules["sample"]


def test_notations():
    assert [snake(n) for n in ("TopicId", "ISRNodes", "From", "V3AndBelowTopics", "ErrorCode")] == [
        "topic_id",
        "isr_nodes",
        "from_",
        "v3_and_below_topics",
        "error_code",
    ]
    assert Versions.parse("2-4") == Versions(2, 4)
    assert Versions.parse("3") == Versions(3, 3)
    assert Versions.parse("5+").holds(5, 100)
    assert not Versions.parse("none").meets(0, 100)


def test_functions_are_cut_where_the_encoding_changes():
    assert ranges(parse(DEFINITION)) == [(0, 1), (2, 2), (3, 3)]


def test_bytes_are_as_kafka_says(sample):
    part = sample.Part(b"i" * 16, [1, 2])
    plain = b"\x00\x00\x00\x01" + b"i" * 16 + b"\x00\x00\x00\x02" + (1).to_bytes(8, "big") + (2).to_bytes(8, "big")
    assert sample.SampleRequest(7, name="ab", parts=[part]).encode(0) == b"\x07\x00\x02ab" + plain
    assert sample.SampleRequest(0, 5, "ab", []).encode(1) == b"\x00\x00\x00\x05\x00\x02ab\x00\x00\x00\x00"
    assert sample.SampleRequest(0, 5, "ab", []).encode(2) == b"\x00\x00\x00\x05\x03ab\x01\x00"
    assert sample.SampleRequest(0, 5, None, []).encode(3) == b"\x00\x00\x00\x05\x00\x01\x00"
    part.extra = "e"
    assert sample.SampleRequest(0, 5, "", [part]).encode(2).endswith(b"\x01\x00\x02\x02e\x00")


@pytest.mark.parametrize("version", range(4))
def test_round_trips(sample, version):
    part = sample.Part(b"i" * 16, list(range(200)), "e" * 300 if version >= 2 else None)
    message = sample.SampleRequest(0, -1 if version == 0 else 5, "n" * 200, [part, part])
    assert sample.SampleRequest.decode(message.encode(version), version) == message


def test_what_cannot_be_carried_or_read(sample):
    with pytest.raises(EncodeError, match="version 0 has no field count"):
        sample.SampleRequest(count=3).encode(0)
    with pytest.raises(EncodeError, match="cannot carry"):
        sample.SampleRequest(name=None).encode(2)
    with pytest.raises(EncodeError, match="versions 0 to 3, not 4"):
        sample.SampleRequest().encode(4)
    with pytest.raises(DecodeError, match="versions 0 to 3, not 9"):
        sample.SampleRequest.decode(b"", 9)
    with pytest.raises(DecodeError, match="name must not be null"):
        sample.SampleRequest.decode(b"\x00\x00\x00\x05\x00\x01\x00", 2)
    with pytest.raises(DecodeError, match="ends early"):
        sample.SampleRequest.decode(b"\x00\x00", 1)
    with pytest.raises(DecodeError, match="not UTF-8"):
        sample.SampleRequest.decode(b"\x00\x00\x00\x05\x02\xff\x01\x00", 2)
