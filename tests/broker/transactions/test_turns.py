"""After a transactional batch was refused nothing behind it is taken in its place."""

from millstream.broker.transactions import turns
from millstream.broker.transactions.turns import Turns

P, Q = ("t", 0), ("t", 1)


def test_the_refused_batch_comes_first():
    known = Turns()
    assert not known
    known.refused(P, 7, 0, 3)
    known.refused(P, 7, 0, 5)
    assert known.early(P, 7, 4)
    assert not known.early(P, 7, 3)
    assert not known.early(Q, 7, 4)
    assert not known.early(P, 8, 4)
    known.refused(P, 7, 0, 1)
    assert known.early(P, 7, 3)
    known.taken(P, 7)
    assert not known.early(P, 7, 9)


def test_a_new_epoch_begins_anew():
    known = Turns()
    known.refused(P, 7, 1, 0)
    known.refused(P, 7, 2, 4)
    assert not known.early(P, 7, 4)
    known.refused(P, 7, 1, 0)  # an old one
    assert not known.early(P, 7, 4)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(turns, "MAX_REFUSED", 2)
    known = Turns()
    for producer in range(3):
        known.refused(P, producer, 0, 0)
    assert [known.early(P, producer, 1) for producer in range(3)] == [False, True, True]
