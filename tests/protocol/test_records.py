"""The record batch format: what is built can be read, damage is refused, bombs do not go off."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from millstream.protocol import records, walk
from millstream.protocol.records import Header, Marker, Record, RecordsError
from tests.protocol.interpreted import interpreted

CODECS = range(5)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
MESSAGES = st.lists(
    st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200), HEADERS), min_size=1, max_size=20
)


@pytest.fixture(autouse=True, scope="module", params=["as built", "interpreted"])
def form(request):
    """All of it runs twice: with the extension, where there is one, and with the file that it was made of."""
    if request.param == "as built":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "walk", interpreted())
        yield


def check(batch):
    """Walk the records of an uncompressed batch."""
    head = records.header(batch)
    anything = 2**63 - 1, -(2**63), 2**63 - 1, False
    return records.walk.check(bytes(batch[61:]), head.record_count, head.base_timestamp, *anything, [])


@given(MESSAGES, st.sampled_from(CODECS), st.data())
def test_what_is_built_is_read_again(messages, codec, data):
    times = [data.draw(st.integers(0, 2**40)) for _ in messages]
    batch = records.build(messages, times, codec=codec, base_offset=1000)
    assert records.valid(batch)
    assert list(records.records(batch)) == [
        Record(1000 + i, times[i], key, value, tuple(headers)) for i, (key, value, headers) in enumerate(messages)
    ]
    header = records.header(batch)
    assert (header.record_count, header.last_offset_delta) == (len(messages), len(messages) - 1)
    assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))
    assert header.codec == codec
    if codec == records.NONE:
        assert check(batch) == max(times)


@given(MESSAGES, st.sampled_from(CODECS), st.data())
def test_entries_are_the_records_as_far_as_their_keys(messages, codec, data):
    times = [data.draw(st.integers(0, 2**40)) for _ in messages]
    batch = records.build(messages, times, codec=codec, base_offset=1000)
    found = list(records.entries(batch))
    assert [entry[:4] for entry in found] == [
        (record.offset, record.timestamp, record.key, record.value is None) for record in records.records(batch)
    ]
    kept = [entry for entry in found if data.draw(st.booleans())] or found
    again = records.wrap(records.header(batch), b"".join(entry[4] for entry in kept), len(kept))
    assert records.valid(again)
    offsets = {entry[0] for entry in kept}
    assert list(records.records(again)) == [record for record in records.records(batch) if record.offset in offsets]


@given(st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), min_size=1, max_size=4), st.data())
def test_entries_refuse_what_is_no_batch(messages, data):
    batch = records.build(messages, 5)
    batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = list(records.records(batch))
    except RecordsError:
        try:  # what it does not look at may be wrong
            list(records.entries(batch))
        except RecordsError:
            return
    else:
        assert [e[:3] for e in records.entries(batch)] == [(r.offset, r.timestamp, r.key) for r in expected]


@given(MESSAGES)
def test_kio_reads_what_is_built(messages):
    messages = [(key, value, headers) for key, value, headers in messages]
    batch = records.build(messages, 1_700_000_000_000, base_offset=40, producer_id=3, producer_epoch=1, base_sequence=6)
    found, size = read_batch(bytes(batch), 0)
    assert size == len(batch)
    assert (found.base_offset, found.last_offset_delta) == (40, len(messages) - 1)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (3, 1, 6)
    assert [(r.offset, r.key, r.value, [(h.key.decode(), h.value) for h in r.headers]) for r in found.records] == [
        (40 + i, *message) for i, message in enumerate(messages)
    ]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value):
    out = bytearray()
    records.put_varint(out, value)
    assert walk.varlong(bytes(out), 0) == (value, len(out))


def test_a_batch_written_out_by_hand_from_the_specification():
    batch = bytes.fromhex(
        "0000000000000000 00000042 00000000 02 00000000 0000 00000000 0000018bcfe56800 0000018bcfe56800"
        "ffffffffffffffff ffff ffffffff 00000001 20 00 00 00 02 6b 0a 68656c6c6f 02 02 61 02 31"
    )
    assert list(records.records(batch)) == [Record(0, 1_700_000_000_000, b"k", b"hello", (("a", b"1"),))]


def test_each_header_field_is_where_kafka_has_it():
    batch = records.build(
        [(b"k", b"v")] * 3,
        77,
        base_offset=5,
        producer_id=9,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        transactional=True,
    )
    header = records.header(batch)
    assert header == Header(5, len(batch) - 12, -1, 2, records.checksum(batch), 16, 2, 77, 77, 9, 2, 2**31 - 2, 3)
    assert (header.size, header.last_offset, header.last_sequence) == (len(batch), 7, 0)
    assert header.transactional and not header.control and not header.log_append_time
    assert header.delete_horizon is None


def test_log_append_time_counts_for_every_record():
    batch = records.build([(b"a", b""), (b"b", b"")], [1, 2])
    header = records.header(batch)
    stamped = records.encode(
        header._replace(attributes=records.LOG_APPEND_TIME, max_timestamp=99), list(records.records(batch))
    )
    assert [record.timestamp for record in records.records(stamped)] == [99, 99]


def test_markers():
    for commit in (True, False):
        batch = records.build_marker(7, 3, commit=commit, coordinator_epoch=4, timestamp=5)
        assert records.marker(batch) == Marker(commit, 4)
        header = records.header(batch)
        assert header.control and header.transactional and header.base_sequence == -1
    empty = records.encode(records.header(batch)._replace(attributes=0x30), [])
    assert records.marker(empty) is None


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_refused_never_guessed(codec):
    batch = records.build([(b"key", b"value" * 50)] * 10, 1, codec=codec)
    for position in range(records.HEADER_SIZE, len(batch), 3):
        broken = bytearray(batch)
        broken[position] ^= 0x55
        assert not records.valid(broken)
        with contextlib.suppress(RecordsError):
            list(records.records(broken))
    for size in range(0, len(batch), 7):
        with pytest.raises(RecordsError):
            list(records.records(batch[:size]))


def test_unknown_codecs():
    for codec in (5, 6, 7):
        with pytest.raises(RecordsError, match="unknown"):
            records.decompress(codec, b"")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: struct.pack_into(">i", b, 57, 3), "record"),
        (lambda b: struct.pack_into(">i", b, 57, 1), "bytes"),
        (lambda b: b.__setitem__(61, 0x7E), "byte"),
        (lambda b: b.__setitem__(61, 0), "byte"),
        (lambda b: struct.pack_into(">i", b, 57, 1_000_000), "do not fit"),
    ],
)
def test_counts_that_are_wrong_are_found(change, says):
    batch = records.build([(b"k", b"v"), (b"k", b"v")], 1)
    change(batch)
    with pytest.raises(RecordsError, match=says):
        check(batch)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 300), st.lists(st.integers(-3, 200), min_size=1, max_size=3)),
        min_size=1,
    ),
    st.data(),
)
def test_a_walk_over_runs_of_equal_records(runs, data):
    sizes, times = [], []
    for count, size, deltas in runs:
        sizes += [size] * count
        times += [1000 + deltas[i % len(deltas)] for i in range(count)]
    batch = records.build([(b"k", bytes(size)) for size in sizes], times)
    assert check(batch) == max(times)
    cut = data.draw(st.integers(1, min(5, len(batch) - 62)))
    with pytest.raises(RecordsError):
        check(batch[:-cut])
    with pytest.raises(RecordsError):
        check(batch + bytes(cut))


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.lists(st.sampled_from([0, 1, 63, 64, 8191, 8192, 2**31, 2**50, -1, -64, -65, -8193]), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_a_walk_over_records_of_any_size_and_time(sizes, deltas, times):
    """Lengths and timestamps of one, two and more bytes, all of them negative too; alike and not."""
    base = 2**51
    stamps = [base] + [base + delta for delta in deltas for _ in range(times)]
    batch = records.build([(None, bytes(sizes[i % len(sizes)])) for i in range(len(stamps))], stamps)
    assert check(batch) == max(stamps)
    # The largest is behind the first, whose timestamp is the base: as an encoder may have it that counts back.
    header = records.header(batch)
    later = records.encode(header._replace(base_timestamp=base + 2**52), list(records.records(batch)))
    assert check(later) == max(stamps)


def test_a_wrong_length_far_inside_is_found():
    batch = records.build([(b"k", bytes(100))] * 5000, 1)
    assert check(batch) == 1
    position = 61
    for _ in range(4321):
        length, start = walk.varint(bytes(batch), position)
        position = start + (length >> 1)
    broken = bytearray(batch)
    broken[position] ^= 2
    with pytest.raises(RecordsError):
        check(broken)


def test_headers_of_several_batches():
    first, second = records.build([(None, b"1")], 1), records.build([(None, b"2")] * 2, 1, base_offset=1)
    found = list(records.headers(first + second))
    assert [(position, header.record_count) for position, header in found] == [(0, 1), (len(first), 2)]
    with pytest.raises(RecordsError, match="announces"):
        list(records.headers((first + second)[:-1]))
    with pytest.raises(RecordsError, match="magic"):
        records.header(bytes(16) + b"\x01" + bytes(60))
