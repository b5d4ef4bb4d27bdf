"""Which offsets a group has missed: by values, and against a simulated log."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.monitor.forecast import Retention, Sample
from millstream.monitor.losses import Loss, Losses
from tests.monitor.simulated import Log


def taken(*positions, losses=None):
    """What is told about (start, committed) at one moment after the other."""
    losses = losses or Losses()
    return [losses.take(Sample(float(i), start, committed, 1000)) for i, (start, committed) in enumerate(positions)]


def test_a_group_ahead_of_the_start_misses_nothing():
    assert taken((0, 10), (10, 10), (10, 500), (400, 500), (500, 500)) == [[]] * 5


def test_what_was_deleted_before_it_was_read_is_named():
    assert taken((0, 10), (50, 10), (50, 10), (80, 10), (80, 300)) == [
        [],
        [Loss(10, 10, 50, 50, over=False)],
        [],
        [Loss(10, 10, 80, 80, over=False)],
        [Loss(10, 10, 80, 80, over=True)],
    ]


def test_what_went_while_the_group_came_back_is_possible():
    assert taken((50, 10), (70, 300))[1] == [Loss(10, 10, 50, 70, over=True)]


def test_a_group_that_came_back_and_fell_behind_again_has_two_losses():
    assert taken((50, 10), (400, 300), (400, 300))[1:] == [
        [Loss(10, 10, 50, 300, over=True), Loss(300, 300, 400, 400, over=False)],
        [],
    ]


def test_what_was_read_in_time_and_committed_later_is_taken_back():
    assert taken((50, 10), (50, 30), (50, 50)) == [
        [Loss(10, 10, 50, 50, over=False)],
        [Loss(10, 30, 50, 50, over=False)],
        [Loss(10, 30, 50, 50, over=True)],
    ]


def test_both_passing_between_two_looks_is_possible_only():
    assert taken((0, 10), (50, 200))[1] == [Loss(10, 10, 10, 50, over=True)]


def test_a_new_topic_of_the_name_is_a_new_story():
    losses = Losses()
    losses.take(Sample(0, 50, 10, 1000))
    assert losses.take(Sample(1, 0, 10, 20)) == []
    assert losses.open is None


def test_a_group_that_is_set_back_before_the_start_has_another_loss():
    assert taken((50, 40), (50, 10))[1] == [Loss(10, 10, 50, 50, over=False)]
    assert taken((50, 40), (30, 30))[1] == []


def test_a_loss_that_was_told_before_is_not_told_again():
    known = Loss(10, 10, 50, 50, over=False)
    assert taken((50, 10), (60, 10), losses=Losses(known)) == [[], [Loss(10, 10, 60, 60, over=False)]]


STEPS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60), st.booleans()), max_size=150)


@given(steps=STEPS, seconds=st.floats(2, 20), segment=st.integers(1, 40), every=st.integers(1, 8))
def test_the_report_names_what_was_missed(steps, seconds, segment, every):
    """Any history of writing, reading and stopping: exact with a look at each step, and certain or possible with fewer looks."""
    log = Log(Retention(seconds=seconds), segment, 100.0, 1.0)
    losses, told = Losses(), {}
    for n, (written, read, stops) in enumerate(steps):
        log.pass_time(1.0, written, 0 if stops else read)
        if n % every == 0:
            told |= {loss.id: loss for loss in losses.take(log.sample())}
    told |= {loss.id: loss for loss in losses.take(log.sample())}
    certain = {o for loss in told.values() for o in range(loss.first, loss.until)}
    possible = {o for loss in told.values() for o in range(loss.first, max(loss.until, loss.possible))}
    assert certain <= log.missed <= possible
    if every == 1:
        assert certain == log.missed
