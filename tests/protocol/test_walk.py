"""The extension that is made of protocol/walk.py does what the file says, also with bytes that are no records."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.protocol import records, walk
from tests.protocol.interpreted import SOURCE, interpreted

needs_extension = pytest.mark.skipif(
    walk.__file__ == str(SOURCE),
    reason="protocol/walk.py is not compiled: scripts/setup does it where there is a C compiler",
)
LARGE = [2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -1, -(2**31), -(2**63)]
NUMBERS = st.sampled_from(LARGE) | st.integers(-3, 200)


def outcome(call, *arguments):
    """What a call returns or raises."""
    try:
        found = call(*arguments)
        return list(found) if hasattr(found, "__next__") else found
    except (walk.RecordsError, IndexError) as error:
        return type(error), str(error) if isinstance(error, walk.RecordsError) else ""


def both(name, *arguments):
    """The same outcome by both."""
    found = outcome(getattr(walk, name), *arguments)
    assert found == outcome(getattr(interpreted(), name), *arguments)
    return found


def check(batch):
    head = records.header(batch)
    anything = 2**63 - 1, -(2**63), 2**63 - 1, False
    return walk.check(bytes(batch[61:]), head.record_count, head.base_timestamp, *anything, [])


def number(value):
    out = bytearray()
    records.put_varint(out, value)
    return bytes(out)


@st.composite
def damaged(draw):
    """The records of a batch in which numbers were replaced, or bytes changed, or which is cut; and how many there are."""
    count = draw(st.integers(1, 5))
    data = b""
    for _ in range(count):
        inside = b"\0" + number(draw(NUMBERS)) + number(draw(NUMBERS))
        for size in (draw(st.integers(0, 40)), draw(st.integers(0, 40))):
            inside += draw(st.just(number(size)) | NUMBERS.map(number)) + bytes(size)
        inside += draw(st.just(b"\0") | NUMBERS.map(number))
        data += number(draw(st.just(len(inside)) | NUMBERS)) + inside
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)[: draw(st.just(len(changed)) | st.integers(0, len(changed)))], count


@needs_extension
@given(damaged(), st.sampled_from([0, 1, 2**62, 2**63 - 1]), st.sampled_from([0, 5, 2**31 - 1]))
def test_the_extension_agrees_with_its_source(made, base, last):
    data, count = made
    for keyed in (False, True):
        ours, theirs = [], []
        found = outcome(walk.check, data, count, base, 60, 0, 2**62 + 100, keyed, ours)
        assert found == outcome(interpreted().check, data, count, base, 60, 0, 2**62 + 100, keyed, theirs)
        assert ours == theirs
        if isinstance(found, int):  # then everybody can read them
            assert len(list(walk.entries(data, count, 7, base, count))) == count
    both("entries", data, count, 7, base, last)
    both("records", data, count, 7, base, last, None)
    both("records", data, count, 7, base, last, 11)
    ours, theirs = {}, {}
    assert outcome(walk.note_keys, data, count, 7, last, 8, ours) == outcome(
        interpreted().note_keys, data, count, 7, last, 8, theirs
    )
    assert ours == theirs


@needs_extension
@given(st.binary(max_size=12))
@example(b"\xff" * 4 + b"\x7f")
@example(b"\xff" * 9 + b"\x7f")
@example(b"\xff" * 9 + b"\x01")
@example(b"\x80" * 9 + b"\x01")
@example(b"\xff" * 12)
def test_numbers_of_any_length(data):
    both("varint", data, 0)
    both("varlong", data, 0)


@pytest.mark.parametrize("value", [*LARGE, 0, 1, -2, 63, 64, 8191, 8192])
def test_numbers_at_the_edges(value):
    assert walk.varlong(number(value), 0) == (value, len(number(value)))
    if -(2**31) <= value < 2**31:
        encoded, end = walk.varint(number(value), 0)
        assert (encoded >> 1 ^ -(encoded & 1), end) == (value, len(number(value)))


def test_numbers_that_are_too_long_are_refused():
    with pytest.raises(walk.RecordsError, match="five bytes"):
        walk.varint(b"\x80" * 5 + b"\0", 0)
    with pytest.raises(walk.RecordsError, match="ten bytes"):
        walk.varlong(b"\x80" * 10 + b"\0", 0)


def test_a_timestamp_that_leaves_64_bits_is_refused():
    batch = records.build([(b"k", b"v"), (b"k", b"v")], [1, 5])
    struct.pack_into(">q", batch, 27, 2**63 - 2)
    for read in (check, records.entries, lambda b: list(records.records(b))):
        with pytest.raises(walk.RecordsError, match="64-bit"):
            read(batch)


def test_so_is_one_that_leaves_them_at_the_other_end():
    batch = records.build([(b"k", b"v")], 5)
    batch[63:64] = b"\x01"  # a delta of -1
    struct.pack_into(">q", batch, 27, -(2**63))
    for read in (check, records.entries, lambda b: list(records.records(b))):
        with pytest.raises(walk.RecordsError, match="64-bit"):
            read(batch)
