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
    assert [index.at_time(t) for t in (0, 7, 8, 9, 10)] == [0, 0, 100, 100, 250]


def test_the_file():
    data = dump(build(), FACTS)
    index, facts = load(data)
    assert facts == FACTS == load_facts(data[:HEADER_SIZE], len(data))
    assert (index.offsets, index.times, index.aborted) == (build().offsets, build().times, build().aborted)


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
    assert index.at_time(wanted) == max((e[1] for e in entries if e[2] < wanted), default=0)
