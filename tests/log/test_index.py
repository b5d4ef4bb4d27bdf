"""The sparse index: pure look-ups, and its file."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.log.index import HEADER_SIZE, Aborted, Facts, Index, dump, load, load_facts

FACTS = Facts(1000, 50, 5, 99, 42, True, 1)


def build() -> Index:
    index = Index()
    index.add(0, 0, -1)
    index.add(10, 100, 7)
    index.add(30, 250, 9)
    index.aborted.append(Aborted(1, 2, 3, 4))
    return index


def test_offsets():
    index = build()
    assert [index.at_offset(o) for o in (0, 9, 10, 29, 30, 99)] == [
        (0, 0),
        (0, 0),
        (10, 100),
        (10, 100),
        (30, 250),
        (30, 250),
    ]
    assert Index().at_offset(5) == (0, 0)


def test_positions():
    index = build()
    assert [index.at_position(p) for p in (0, 99, 100, 249, 250, 10_000)] == [0, 0, 100, 100, 250, 250]
    assert Index().at_position(5) == 0


def test_times():
    index = build()
    # All batches before 100 are at most 7, all before 250 at most 9.
    assert [index.at_time(t)[1] for t in (0, 7, 8, 9, 10)] == [0, 0, 100, 100, 250]


def test_the_file():
    data = dump(build(), FACTS)
    index, facts = load(data)
    assert facts == FACTS == load_facts(data[:HEADER_SIZE], len(data))
    assert (index.offsets, index.times, index.aborted) == (build().offsets, build().times, build().aborted)


def test_the_file_with_sums():
    index = Index()
    for i in range(7):
        if i % 3 == 0:
            index.add(i * 5, i * 100, -1)
        index.sum_up(i * 5)
    assert [index.summed(p)[:2] for p in (0, 299, 300, 599, 600, 10_000)] == [
        *((0, 300), (0, 300), (300, 600), (300, 600), (600, 0), (600, 0)),
    ]
    again, facts = load(dump(index, FACTS))
    assert (again.sums, again.offsets) == (index.sums, index.offsets) and facts == FACTS._replace(aborted=0)
    assert not load(dump(index, FACTS._replace(gaps=False)))[0].sums
    index.add(99, 900, -1)  # one without a sum: none is kept
    assert not load(dump(index, FACTS))[0].sums
    assert Index().summed(0) is None


def test_the_first_version_of_the_file():
    """Its header has no checksum of its own: facts are read from all of it."""
    data = bytes.fromhex(
        "4d53495800010001000000020000000100000000000003e80000000000000032000000000000000500000000000000630000"
        "00000000002a486ab9f60000000000000000640000000a000000ffffffffffffffff07000000000000000100000000000000"
        "020000000000000003000000000000000400000000000000"
    )
    index, facts = load(data)
    assert facts == FACTS == load_facts(data, len(data)) and load_facts(data[:HEADER_SIZE], len(data)) is None
    assert list(index.offsets) == [0, 10 << 32 | 100] and list(index.times) == [-1, 7]
    assert index.aborted == [Aborted(1, 2, 3, 4)] and not index.sums
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x10
        assert load(bytes(broken)) is None and load_facts(bytes(broken), len(broken)) is None


def test_the_header_alone_is_checked():
    data = dump(build(), FACTS)
    for bit in range(8 * HEADER_SIZE):
        broken = bytearray(data[:HEADER_SIZE])
        broken[bit // 8] ^= 1 << bit % 8
        assert load_facts(bytes(broken), len(data)) is None


def test_any_damage_is_noticed():
    data = dump(build(), FACTS)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x10
        assert load(bytes(broken)) is None
    for size in range(len(data)):
        assert load(data[:size]) is None


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 5000), st.integers(0, 100)), max_size=50), st.data())
def test_look_ups_agree_with_a_walk(steps, data):
    index, entries = Index(), []
    offset = position = newest = 0
    for by, size, newer in steps:
        index.add(offset, position, newest)
        entries.append((offset, position, newest))
        offset, position, newest = offset + by, position + size, newest + newer
    wanted = data.draw(st.integers(0, offset + 1))
    before = [entry for entry in entries if entry[0] <= wanted]
    assert index.at_offset(wanted) == (before[-1][:2] if before else (0, 0))
    wanted = data.draw(st.integers(0, position + 1))
    assert index.at_position(wanted) == max((e[1] for e in entries if e[1] <= wanted), default=0)
    wanted = data.draw(st.integers(0, newest + 1))
    assert index.at_time(wanted) == max((e[:2] for e in entries if e[2] < wanted), default=(0, 0))
