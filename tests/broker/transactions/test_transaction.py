"""One transactional id as a state machine: both transaction versions, fencing, retries, timeouts, restarts."""

import pytest

from millstream.broker.internal_topics import PREFIX, Replayed, pack
from millstream.broker.transactions import records
from millstream.broker.transactions.transaction import LAST_EPOCH, Mark, State, Store, Transaction
from millstream.protocol import errors

P0, P1 = ("t", 0), ("t", 1)


class Harness:
    """A transaction, what it stored, and the markers it wanted written."""

    def __init__(self, **values) -> None:
        self.t = Transaction("x", 7, 0, 1000, **values)
        self.now = 0
        self.stored: list[State] = []
        self.marks: list[Mark] = []
        self.disk_works = True

    def carry_out(self, outcome):
        error, effects = outcome
        for effect in effects:
            if isinstance(effect, Store):
                self.stored.append(self.t.state)
            else:
                self.marks.append(effect)
                if self.disk_works:
                    for where in effect.partitions:
                        self.carry_out((0, self.t.marked(where, self.now)))
        return error

    def init(self, producer=-1, epoch=-1):
        return self.carry_out(self.t.init(producer, epoch, 1000, 99, self.now))

    def add(self, *places, producer=7, epoch=None):
        return self.carry_out(self.t.add(producer, self.t.epoch if epoch is None else epoch, set(places), self.now))

    def end(self, commit=True, producer=None, epoch=None, raises=False):
        producer = self.t.producer_id if producer is None else producer
        epoch = self.t.epoch if epoch is None else epoch
        return self.carry_out(self.t.end(producer, epoch, commit, 99, self.now, raises))


@pytest.fixture
def h():
    return Harness()


@pytest.mark.parametrize("commit", [True, False])
def test_version_1_keeps_the_epoch(h, commit):
    assert h.add(P0) == 0
    assert h.add(P0) == 0
    assert h.add(P1) == 0
    assert h.end(commit) == 0
    assert h.marks == [Mark(commit, 7, 0, (P0, P1))]
    prepared, completed = (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    )
    assert h.stored == [State.ONGOING, State.ONGOING, prepared, completed]
    assert (h.t.state, h.t.epoch, h.t.partitions) == (completed, 0, set())
    assert h.end(commit) == 0  # a retry
    assert h.end(not commit) == errors.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_raises_the_epoch_at_each_end(h, commit):
    h.add(P0)
    assert h.end(commit, raises=True) == 0
    assert h.marks == [Mark(commit, 7, 1, (P0,))]
    assert h.t.epoch == 1
    assert h.end(commit, epoch=0, raises=True) == 0  # a retry with the epoch it had
    assert h.end(not commit, epoch=0, raises=True) == errors.INVALID_TXN_STATE
    assert len(h.marks) == 1
    assert h.add(P0, epoch=0) == errors.PRODUCER_FENCED


def test_version_2_may_abort_a_transaction_that_wrote_nothing(h):
    assert h.end(False, raises=True) == 0
    assert (h.t.state, h.t.epoch, h.marks) == (State.COMPLETE_ABORT, 1, [])
    assert h.end(True, raises=True) == errors.INVALID_TXN_STATE
    assert h.end(False) == 0


def test_version_1_may_not_end_what_did_not_begin(h):
    assert h.end(True) == h.end(False) == errors.INVALID_TXN_STATE


def test_a_new_start_fences_and_aborts(h):
    h.add(P0)
    assert h.init() == errors.CONCURRENT_TRANSACTIONS
    assert h.marks == [Mark(False, 7, 1, (P0,))]
    assert h.init() == 0
    assert (h.t.state, h.t.epoch) == (State.EMPTY, 2)
    assert h.add(P0, epoch=0) == errors.PRODUCER_FENCED
    assert h.end(epoch=0) == errors.PRODUCER_FENCED
    assert h.add(P0, producer=8) == errors.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_goes_on_with_its_own_epoch(h):
    assert h.init(7, 0) == 0
    assert h.t.epoch == 1
    assert h.init(7, 0) == 0  # its answer was lost
    assert h.t.epoch == 1
    assert h.init(7, 5) == errors.PRODUCER_FENCED
    assert h.init(8, 1) == errors.PRODUCER_FENCED


def test_a_producer_is_not_given_the_epoch_of_the_one_that_took_over(h):
    """Source: TransactionMetadata.prepareIncrementProducerEpoch, which forgets the last epoch then."""
    assert h.init() == 0
    assert h.t.epoch == 1
    assert h.init(7, 0) == errors.PRODUCER_FENCED
    h.add(P0)
    assert h.init(7, 0) == errors.PRODUCER_FENCED
    assert h.t.state is State.ONGOING
    assert h.end() == 0


def test_a_producer_whose_transaction_took_too_long_may_go_on(h):
    """KIP-588; with version 2 the abort of its client tells it, too (TransactionCoordinator.endTransaction)."""
    h.add(P0)
    h.carry_out((0, h.t.expire(1000)))
    assert h.end(True, epoch=0, raises=True) == errors.INVALID_TXN_STATE
    assert h.end(False, epoch=0, raises=True) == 0
    assert h.init(7, 0) == 0
    assert (h.t.epoch, h.t.last_epoch) == (1, 0)
    assert h.init() == 0
    assert h.init(7, 0) == h.init(7, 1) == errors.PRODUCER_FENCED


@pytest.mark.parametrize("given", [(7, LAST_EPOCH), (-1, -1)])
def test_epochs_run_out_into_a_new_id(h, given):
    h.t.epoch = LAST_EPOCH
    assert h.init(*given) == 0
    assert (h.t.producer_id, h.t.epoch) == (99, 0)
    # Its answer was lost; or another producer has taken over.
    assert h.init(7, LAST_EPOCH) == (0 if given[0] == 7 else errors.PRODUCER_FENCED)
    assert (h.t.producer_id, h.t.epoch) == (99, 0)


def test_epochs_run_out_at_an_end_of_version_2(h):
    h.t.epoch = LAST_EPOCH
    h.add(P0)
    assert h.end(raises=True) == 0
    assert h.marks == [Mark(True, 7, 0x7FFF, (P0,))]
    assert (h.t.producer_id, h.t.epoch) == (99, 0)
    assert h.end(producer=7, epoch=LAST_EPOCH, raises=True) == 0


def test_a_timeout_aborts_and_fences(h):
    h.add(P0)
    h.carry_out((0, h.t.expire(999)))
    assert h.marks == []
    h.carry_out((0, h.t.expire(1000)))
    assert h.marks == [Mark(False, 7, 1, (P0,))]
    assert h.end(epoch=0) == errors.PRODUCER_FENCED


def test_while_markers_are_missing_nothing_else_happens_and_later_they_are_written(h):
    h.add(P0, P1)
    h.disk_works = False
    assert h.end() == 0
    assert h.t.state is State.PREPARE_COMMIT
    assert h.end() == h.add(P0) == h.init() == errors.CONCURRENT_TRANSACTIONS
    assert h.end(False) == errors.INVALID_TXN_STATE
    h.disk_works = True
    h.carry_out((0, h.t.resume()))
    assert h.t.state is State.COMPLETE_COMMIT


def test_holds(h):
    assert h.t.holds(7, 0, {P0}) == errors.INVALID_TXN_STATE
    h.add(P0)
    assert h.t.holds(7, 0, {P0}) == 0
    assert h.t.holds(7, 0, {P1}) == errors.INVALID_TXN_STATE
    assert h.t.holds(7, 1, {P0}) == errors.PRODUCER_FENCED


def test_a_deleted_topic_needs_no_marker(h):
    h.add(P0)
    h.t.forget_topic("t")
    assert h.end() == 0
    assert h.marks == []


@pytest.mark.parametrize("raises", [True, False])
def test_what_is_stored_is_read_again(h, raises):
    h.add(P0, P1, ("u", 3))
    h.disk_works = False
    h.end(raises=raises)
    key, value, version = records.write(h.t)
    data = pack(version, value, version)
    record = Replayed(0, memoryview(pack(0, key, 0))[2:], PREFIX.unpack_from(data)[0], memoryview(data)[2:], -1)
    name, again = records.read(record)
    assert name == "x"
    assert again.partitions == h.t.partitions
    assert again.resume() == h.t.resume()
    for where in list(again.partitions):
        again.marked(where, 5)
    assert (again.state, again.producer_id, again.epoch) == (State.COMPLETE_COMMIT, 7, 1 if raises else 0)


def test_a_producer_with_the_raised_epoch_waits_for_the_markers(h):
    h.disk_works = False
    assert h.add(P0) == 0
    assert h.end(raises=True) == 0
    assert h.t.going_on() == (7, 1)
    assert h.add(P0, epoch=1) == errors.CONCURRENT_TRANSACTIONS
    assert h.end(epoch=1, raises=True) == errors.CONCURRENT_TRANSACTIONS
    assert h.add(P0, epoch=2) == errors.PRODUCER_FENCED
    h.disk_works = True
    h.carry_out((0, h.t.resume()))
    assert h.t.going_on() == (7, 1)
    assert h.add(P0, epoch=1) == 0


def test_what_could_not_be_stored_is_taken_back(h):
    assert h.add(P0) == 0
    before = h.t.copy()
    h.disk_works = False
    assert h.end(raises=True) == 0
    assert h.t != before
    h.t.restore(before)
    assert h.t == before and h.t.partitions == {P0}
    h.disk_works = True
    assert h.end(raises=True) == 0
    assert h.t.state is State.COMPLETE_COMMIT
