"""Producer state: Kafka's rules for sequences, epochs and transactions, on values."""

import pytest

from millstream.log import producers as states
from millstream.log.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from millstream.log.index import Aborted
from millstream.log.producers import UNKNOWN, Producer, Producers, Sent, dump, duplicate, ended, load, sent
from millstream.protocol.records import MAX_SEQUENCE, Marker


def step(state: Producer, first: int, last: int, *, epoch: int = 0, offset: int = 0, transactional=False, client=True):
    batch = Sent(first, last, offset, offset + last - first, 1)
    return sent(state, 7, epoch, batch, 99, transactional=transactional, client=client)


def test_sequences_follow_each_other():
    state = step(step(UNKNOWN, 0, 4), 5, 5, offset=5)
    assert (state.last_sequence, state.last_offset, state.seen) == (5, 5, 99)
    for first in (0, 4, 5, 7):
        with pytest.raises(OutOfOrderSequence, match="expected 6") as caught:
            step(state, first, first)
        assert caught.value.code == 45


def test_an_unknown_producer_may_begin_anywhere():
    assert step(UNKNOWN, 17, 18).last_sequence == 18


def test_sequences_wrap():
    state = step(UNKNOWN, MAX_SEQUENCE - 1, MAX_SEQUENCE)
    assert step(state, 0, 3).last_sequence == 3
    with pytest.raises(OutOfOrderSequence):
        step(state, 1, 3)


def test_a_new_epoch_begins_with_zero():
    state = step(UNKNOWN, 0, 4, epoch=1)
    assert step(state, 0, 0, epoch=2).batches == (Sent(0, 0, 0, 0, 1),)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        step(state, 5, 5, epoch=2)
    with pytest.raises(InvalidProducerEpoch) as caught:
        step(state, 5, 5, epoch=0)
    assert caught.value.code == 47


def test_the_last_five_batches_are_known():
    state = UNKNOWN
    for i in range(8):
        state = step(state, i, i, offset=100 + i)
    assert [duplicate(state, 0, i, i) is not None for i in range(8)] == [False] * 3 + [True] * 5
    assert duplicate(state, 0, 4, 4).first_offset == 104
    assert duplicate(state, 1, 4, 4) is None
    assert duplicate(state, 0, 4, 5) is None


def test_a_coordinator_needs_no_sequence():
    state = step(UNKNOWN, -1, -1, client=False, transactional=True)
    assert step(state, -1, -1, client=False, transactional=True).transaction_start == 0


def test_transactions_begin_and_end():
    state = step(UNKNOWN, 0, 0, offset=10, transactional=True)
    state = step(state, 1, 1, offset=11, transactional=True)
    assert state.transaction_start == 10
    with pytest.raises(InvalidTransactionState):
        step(state, 2, 2, offset=12)
    after = ended(state, 7, 0, Marker(True, 3), 5, 99)
    assert (after.transaction_start, after.coordinator_epoch, after.last_sequence) == (-1, 3, 1)
    with pytest.raises(TransactionCoordinatorFenced):
        ended(after, 7, 0, Marker(True, 2), 5, 99)
    with pytest.raises(InvalidProducerEpoch):
        ended(ended(after, 7, 1, Marker(False, 3), 5, 99), 7, 0, Marker(False, 3), 5, 99)
    assert ended(after, 7, 1, Marker(False, 3), 5, 99).batches == ()


def test_the_oldest_open_transaction_holds_the_stable_offset():
    all_of = Producers()
    for producer_id, offset in ((1, 10), (2, 20), (3, 30)):
        all_of.put(producer_id, step(UNKNOWN, 0, 0, offset=offset, transactional=True))
    assert all_of.first_unstable == 10
    entry = all_of.end(2, ended(all_of.get(2), 2, 0, Marker(False, 0), 1, 1), False, 40)
    assert entry == Aborted(2, 20, 40, 10)
    entry = all_of.end(1, ended(all_of.get(1), 1, 0, Marker(True, 0), 1, 1), True, 41)
    assert entry is None and all_of.first_unstable == 30
    assert all_of.end(3, ended(all_of.get(3), 3, 0, Marker(False, 0), 1, 1), False, 42) == Aborted(3, 30, 42, 43)
    assert all_of.first_unstable is None


def test_expiry_spares_open_transactions():
    all_of = Producers()
    all_of.put(1, Producer(seen=100))
    all_of.put(2, Producer(seen=100, transaction_start=5))
    all_of.put(3, Producer(seen=150))
    assert all_of.expired(200, 100) == [1]


def test_too_many_producers(monkeypatch):
    monkeypatch.setattr(states, "MAX_PRODUCERS", 20)
    all_of = Producers()
    for i in range(100):
        all_of.put(i, Producer(seen=i, transaction_start=0 if i == 0 else -1))
    assert len(all_of) <= 20
    assert 0 in all_of.view and 99 in all_of.view


def test_the_snapshot_file():
    state = step(step(UNKNOWN, 0, 4, transactional=True), 5, 5, offset=5, transactional=True)
    entries = {7: state, 8: UNKNOWN}
    data = dump(entries, 123)
    assert load(data) == (123, entries)
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1
        assert load(bytes(broken)) is None
        assert load(data[:position]) is None
    again = Producers()
    again.fill(load(data)[1])
    assert again.first_unstable == 0
