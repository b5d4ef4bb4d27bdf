"""Committed offsets as values: what counts when, of plain commits and of those in transactions."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups.offsets import Committed, Offsets

A, B = ("t", 0), ("t", 1)


def positions(offsets):
    return {where: what.offset for where, what in offsets.committed.items()}


def test_a_transactions_offsets_count_when_it_commits():
    offsets = Offsets()
    offsets.commit_pending(7, A, Committed(5))
    offsets.commit_pending(8, B, Committed(6))
    assert offsets.unstable(A)
    assert not positions(offsets)
    offsets.end(7, True)
    offsets.end(8, False)
    assert positions(offsets) == {A: 5}
    assert not offsets.unstable(A)
    assert not offsets.unstable(B)


def test_a_plain_commit_after_the_one_in_a_transaction_stays():
    """Committed offsets must not go back when an earlier commit's transaction ends."""
    offsets = Offsets()
    offsets.commit_pending(7, A, Committed(5))
    offsets.commit(A, Committed(9))
    offsets.end(7, True)
    assert positions(offsets) == {A: 9}


def test_what_is_deleted_does_not_come_back_with_its_transaction():
    offsets = Offsets()
    offsets.commit(A, Committed(1))
    offsets.commit_pending(7, A, Committed(5))
    offsets.commit_pending(7, B, Committed(6))
    assert offsets.places() == {A, B}
    offsets.forget(A)
    offsets.end(7, True)
    assert positions(offsets) == {B: 6}
    offsets.forget(B)
    assert not offsets


def test_expired_offsets():
    offsets = Offsets()
    offsets.commit(A, Committed(1, at=100))
    offsets.commit(B, Committed(1, at=100, expires=500))
    assert offsets.expired(cutoff=101, now=200) == [A]
    assert offsets.expired(cutoff=50, now=500) == [B]
    offsets.commit_pending(7, A, Committed(5))
    assert offsets.expired(cutoff=101, now=200) == []


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.none(), st.sampled_from([A, B])),
        st.tuples(st.just("pending"), st.integers(1, 3), st.sampled_from([A, B])),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("forget"), st.none(), st.sampled_from([A, B])),
    ),
    max_size=30,
)


@given(EVENTS)
def test_the_latest_commit_that_counts_wins(events):
    """Against a model that keeps every commit: of those that count the one that was made last."""
    offsets = Offsets()
    made = []  # [number, where, producer or None while it counts]
    for number, (kind, producer, detail) in enumerate(events):
        if kind == "commit":
            offsets.commit(detail, Committed(number))
            made.append([number, detail, None])
        elif kind == "pending":
            offsets.commit_pending(producer, detail, Committed(number))
            made = [m for m in made if m[1:] != [detail, producer]]
            made.append([number, detail, producer])
        elif kind == "end":
            offsets.end(producer, detail)
            made = [m for m in made if m[2] != producer or detail]
            for each in made:
                if each[2] == producer:
                    each[2] = None
        else:
            offsets.forget(detail)
            made = [m for m in made if m[1] != detail]
    counting = [(number, where) for number, where, producer in made if producer is None]
    assert positions(offsets) == {where: number for number, where in sorted(counting)}
