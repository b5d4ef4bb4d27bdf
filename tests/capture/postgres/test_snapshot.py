"""Which transactions a snapshot sees: what makes a chunk fit into the log."""

from __future__ import annotations

from millstream.capture.postgres.snapshot import Snapshot, Unseen


def test_sees_what_was_committed_before() -> None:
    snapshot = Snapshot.parse("100:110:100,105")
    assert [xid for xid in range(98, 113) if snapshot.sees(xid)] == [98, 99, 101, 102, 103, 104, 106, 107, 108, 109]


def test_nothing_runs() -> None:
    snapshot = Snapshot.parse("100:100:")
    assert snapshot.sees(99) and not snapshot.sees(100) and not snapshot.sees(101)


def test_ids_wrap_at_32_bits() -> None:
    """The log has 32 bits of the 64 that a snapshot has."""
    snapshot = Snapshot.parse(f"{2**32 + 2}:{2**32 + 5}:{2**32 + 3}")
    assert snapshot.sees(2**32 - 1) and snapshot.sees(4)
    assert not snapshot.sees(3) and not snapshot.sees(5) and not snapshot.sees(6)


def test_what_is_not_seen_yet_is_asked_about_again() -> None:
    unseen = Unseen()
    for xid in (101, 102, 110):
        assert not unseen.add(xid)
    assert not unseen.clear_by(Snapshot.parse("102:110:102"))
    assert not unseen.clear_by(Snapshot.parse("110:110:"))
    assert unseen.clear_by(Snapshot.parse("111:111:"))
    assert unseen.clear_by(Snapshot.parse("1:1:"))  # seen once, seen for ever


def test_many_make_the_source_be_asked() -> None:
    unseen = Unseen()
    assert not any(unseen.add(xid) for xid in range(Unseen.LIMIT - 1))
    assert unseen.add(Unseen.LIMIT)
