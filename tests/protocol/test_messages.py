"""Every generated message against kio's: the same bytes, the same values; and bounds on what a bad length may cost."""

import contextlib
import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.protocol.messages import APIS
from millstream.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
)
from millstream.protocol.messages.metadata import MetadataRequest
from millstream.protocol.messages.produce import ProduceRequest
from millstream.protocol.wire import DecodeError, EncodeError
from tests.protocol.kio_values import encoded, load, make, same


def cases():
    """Every message class and version that kio has too."""
    out, missing = [], []
    for api in APIS.values():
        for kind, cls in (("request", api.request()), ("response", api.response())):
            for version in range(cls.VERSIONS[0], cls.VERSIONS[1] + 1):
                try:
                    theirs = load(api.module, kind, version, api.name + kind.capitalize())
                except ImportError:
                    missing.append(f"{cls.__name__} {version}")
                    continue
                out.append((cls, theirs, version))
    return out, missing


CASES, MISSING = cases()


def check(cls, theirs, version, random):
    entity = make(theirs, random)
    data = encoded(entity)
    message, end = cls.decode_from(data, version)
    assert end == len(data)
    same(entity, message, cls.__name__)
    assert message.encode(version) == data


def test_kio_covers_nearly_everything():
    assert len(CASES) > 500
    assert len(MISSING) < 10, MISSING


def test_every_version_of_every_message():
    for cls, theirs, version in CASES:
        for seed in range(3):
            check(cls, theirs, version, Random(seed))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.integers(0, 2**32))
def test_round_trips(case, seed):
    check(*case, Random(seed))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.integers(0, 2**32), st.data())
def test_cut_and_flipped_bytes_are_decode_errors_or_messages(case, seed, data):
    cls, theirs, version = case
    good = encoded(make(theirs, Random(seed)))
    cut = data.draw(st.integers(0, len(good)))
    bad = bytearray(good[:cut])
    if bad:
        for at in data.draw(st.lists(st.integers(0, len(bad) - 1), max_size=4)):
            bad[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DecodeError):
        cls.decode(bad, version)


@pytest.mark.parametrize("version", [3, 9])
def test_an_announced_length_beyond_the_end_is_refused_before_anything_is_allocated(version):
    if version < 9:
        data = struct.pack(">hhii", -1, 1, 1000, 0x7FFFFFFF)
    else:
        data = b"\0" + struct.pack(">hi", 1, 1000) + b"\xff\xff\xff\xff\x0f"
    tracemalloc.start()
    with pytest.raises(DecodeError, match=r"topic_data announces a length of .* but only 0 bytes are left"):
        ProduceRequest.decode(data, version)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_unknown_tags_are_skipped_and_may_not_pass_the_end():
    plain = MetadataRequest(topics=[]).encode(12)
    assert plain[-1] == 0
    with_tag = plain[:-1] + b"\x01\x63\x03abc"
    assert MetadataRequest.decode(with_tag, 12) == MetadataRequest(topics=[])
    with pytest.raises(DecodeError):
        MetadataRequest.decode(plain[:-1] + b"\x01\x63\x09abc", 12)


def test_a_value_that_the_version_cannot_carry_is_refused():
    with pytest.raises(EncodeError, match="version 4 has no field forgotten_topics_data"):
        FetchRequest(forgotten_topics_data=[ForgottenTopic("t")]).encode(4)


def test_records_can_be_left_out_for_files():
    class InFile:
        def __len__(self):
            return 1000

    for version in range(4, 19):
        whole = FetchResponse(responses=[FetchableTopicResponse("t", bytes(16), [PartitionData(records=b"x" * 1000)])])
        cut = FetchResponse(responses=[FetchableTopicResponse("t", bytes(16), [PartitionData(records=InFile())])])
        out, cuts = bytearray(), []
        cut.encode_into(out, version, cuts)
        [(at, _)] = cuts
        assert bytes(out[:at] + b"x" * 1000 + out[at:]) == whole.encode(version)
