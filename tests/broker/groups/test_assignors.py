"""The server's assignors: everything assigned once and only to subscribers, even, and with few moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups.assignors import ASSIGNORS, ranges, uniform

TOPICS = [bytes([i]) * 16 for i in range(4)]
counts = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})
members = st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from(TOPICS)), min_size=1)
alike = st.tuples(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.sets(st.sampled_from(TOPICS))).map(
    lambda both: dict.fromkeys(both[0], both[1])
)


def places(target):
    return [(topic, i) for topics in target.values() for topic, indexes in topics.items() for i in indexes]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(members, members, counts)
def test_each_partition_has_one_subscriber(name, before, after, partitions):
    assign = ASSIGNORS[name]
    target = assign(after, partitions, assign(before, partitions, {}))
    assert set(target) == set(after)
    for member, topics in target.items():
        assert set(topics) <= after[member]
        assert all(topics.values())
    wanted = {topic for topics in after.values() for topic in topics}
    assert sorted(places(target)) == sorted((t, i) for t in wanted for i in range(partitions[t]))


@given(alike, alike, counts)
def test_uniform_is_even_and_moves_only_what_it_must(before, after, partitions):
    first = uniform(before, partitions, {})
    target = uniform(after, partitions, first)
    loads = [sum(map(len, topics.values())) for topics in target.values()]
    assert max(loads) - min(loads) <= 1
    # Whoever stays and has room keeps all that it may still have, up to the even share.
    share = sum(loads) // len(loads)
    for member in set(before) & set(after):
        had = {p for p in places({member: first[member]}) if p[0] in after[member]}
        kept = had & set(places({member: target[member]}))
        assert len(kept) >= min(len(had), share)


@given(members, counts)
def test_uniform_is_even_between_any_two_who_could_exchange(wanted, partitions):
    target = uniform(wanted, partitions, {})
    loads = {member: len(places({member: topics})) for member, topics in target.items()}
    for giver, topics in target.items():
        for taker in wanted:
            if loads[giver] - loads[taker] >= 2:
                assert not set(topics) & wanted[taker]


@given(members, counts)
def test_ranges_are_consecutive(wanted, partitions):
    for topics in ranges(wanted, partitions, {}).values():
        for indexes in topics.values():
            assert max(indexes) - min(indexes) == len(indexes) - 1


def test_the_same_partitions_of_topics_of_one_size_meet():
    target = ranges({"a": set(TOPICS[:2]), "b": set(TOPICS[:2])}, {TOPICS[0]: 5, TOPICS[1]: 5}, {})
    assert target["a"][TOPICS[0]] == target["a"][TOPICS[1]] == {0, 1, 2}
