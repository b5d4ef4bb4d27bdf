"""When retention overtakes a group: by values, and against a simulated log."""

from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.monitor.forecast import MAX_SAMPLES, WINDOW_S, Forecast, History, Retention, Sample, forecast
from tests.monitor.simulated import Log

HOUR = 3600.0
A_DAY = Retention(seconds=24 * HOUR)


def test_who_has_read_everything_loses_nothing():
    assert forecast([], A_DAY) is None
    assert forecast([Sample(0.0, 0, 10, 10)], A_DAY) is None


def test_without_limits_and_movement_nothing_is_lost():
    assert forecast([Sample(0.0, 0, 5, 10, 0.0), Sample(9.0, 0, 5, 10, 0.0)], Retention()) is None


def test_a_group_at_rest_loses_when_its_next_event_is_as_old_as_the_retention():
    now = 100 * HOUR
    found = forecast([Sample(now, 0, 5, 10, written_at=now - 20 * HOUR)], A_DAY)
    assert found == Forecast(4 * HOUR, 4 * HOUR, 24 * HOUR, "time")


def test_a_slow_group_loses_later_and_a_fast_one_never():
    """The events' times advance by 10 or 60 s a minute, while the retention advances by 60."""
    slow = [Sample(60.0 * i, 0, i, 10_000, written_at=-20 * HOUR + 10.0 * i) for i in range(10)]
    left = 4 * HOUR - 9 * 50.0
    found = forecast(slow, A_DAY)
    assert (found.seconds, found.at_rest) == (pytest.approx(left / (50 / 60)), pytest.approx(left))
    fast = [Sample(60.0 * i, 0, i, 10_000, written_at=-20 * HOUR + 61.0 * i) for i in range(10)]
    assert forecast(fast, A_DAY).seconds == inf


def test_a_group_that_stopped_is_seen_as_one_when_half_of_the_time_left_has_passed():
    """It kept up for ten minutes and then stood for two, with a retention of six: four are left, of which two are looked at."""
    ran = [Sample(10.0 * i, 0, i, 10_000, 10.0 * i) for i in range(60)]
    stood = [Sample(600.0 + 10.0 * i, 0, 60, 10_000, 600.0) for i in range(13)]
    assert forecast([*ran, *stood], Retention(seconds=360.0)).seconds == 240.0


def test_by_size_what_is_unread_has_to_fit():
    """1,000 offsets of 100 bytes each 10 s, none read: 60,000 bytes are left at 10,000 bytes a second."""
    samples = [Sample(10.0 * i, 0, 0, 1000 * i, None, 100.0) for i in range(5)]
    found = forecast(samples, Retention(bytes=1_000_000))
    assert (found.seconds, found.horizon, found.by) == (60.0, 100.0, "size")
    reading = [Sample(10.0 * i, 0, 500 * i, 1000 * i, None, 100.0) for i in range(5)]
    assert forecast(reading, Retention(bytes=1_000_000)).seconds == pytest.approx(160.0)


def test_the_sooner_of_two_limits_counts():
    samples = [Sample(10.0 * i, 0, 0, 1000 * i, 0.0, 100.0) for i in range(5)]
    assert forecast(samples, Retention(seconds=60.0, bytes=1_000_000)).by == "time"
    assert forecast(samples, Retention(seconds=600.0, bytes=1_000_000)).by == "size"


def test_without_known_limits_the_logs_start_tells():
    """100 offsets go at once each 10 s; the group stands 500 behind the start: at least four more steps."""
    samples = [Sample(10.0 * i, 100 * i, 700, 9000) for i in range(3)]
    found = forecast(samples, Retention())
    assert (found.seconds, found.by) == (40.0, "start")


def test_before_the_start_the_loss_has_begun():
    assert forecast([Sample(0.0, 6, 5, 10)], Retention()).seconds == 0.0
    assert forecast([Sample(0.0, 6, 5, 10)], Retention()).urgent(1.0)


@pytest.mark.parametrize(
    ("found", "interval", "urgent"),
    [
        (Forecast(601, 601, 86400, "time"), 15, False),
        (Forecast(600, 600, 86400, "time"), 15, True),
        (Forecast(600, 300, 1200, "time"), 15, False),
        (Forecast(300, 300, 1200, "time"), 15, True),
        (Forecast(40, 40, 60, "time"), 15, True),
        (Forecast(inf, 46, 86400, "time"), 15, False),
        (Forecast(inf, 45, 86400, "time"), 15, True),
    ],
)
def test_a_warning_leaves_time_to_act_as_far_as_there_is_time(found, interval, urgent):
    assert found.urgent(interval) is urgent


def test_the_history_is_bounded_in_number_and_age():
    history = History()
    for i in range(1000):
        history.add(Sample(float(i), 0, 0, 0))
    assert len(history.samples) == MAX_SAMPLES
    history.add(Sample(999 + WINDOW_S, 0, 0, 0))
    assert [s.at for s in history.samples] == [999.0, 999 + WINDOW_S]


@pytest.mark.parametrize("back", [Sample(1, 4, 9, 20), Sample(1, 5, 8, 20), Sample(1, 5, 9, 19), Sample(-1, 5, 9, 20)])
def test_what_goes_back_begins_anew(back):
    history = History()
    history.add(Sample(0, 5, 9, 20))
    history.add(back)
    assert list(history.samples) == [back]


@st.composite
def retentions(draw):
    seconds = draw(st.none() | st.floats(20, 500))
    size = draw(st.none() | st.integers(2_000, 200_000)) if seconds is not None else draw(st.integers(2_000, 200_000))
    return Retention(seconds, size)


@given(
    retention=retentions(),
    written=st.integers(1, 40),
    share=st.floats(0, 1.2),
    slow=st.floats(0, 0.9),
    runs=st.integers(0, 60),
    segment=st.integers(1, 200),
    check=st.floats(0.5, 30),
)
def test_the_warning_comes_before_the_first_loss(retention, written, share, slow, runs, segment, check):
    """A group that keeps up or not, and then becomes slow or stops, while the producer goes on evenly; a sample each second."""
    log = Log(retention, segment, 100.0, check)
    history, warned = History(), False
    # Where one second's events fill the log, no warning can come in time.
    assume(retention.bytes is None or retention.bytes > 4 * written * 100)
    for second in range(700):
        log.pass_time(1.0, written, int(written * (share if second < runs else slow)))
        if log.missed:
            assert warned
            return
        history.add(log.sample())
        found = forecast(history.samples, retention)
        warned = warned or (found is not None and found.urgent(1.0))


@given(retention=retentions(), written=st.integers(1, 40), segment=st.integers(1, 200), check=st.floats(0.5, 30))
def test_a_forecast_for_a_group_at_rest_is_never_too_late(retention, written, segment, check):
    log = Log(retention, segment, 100.0, check)
    history, promised = History(), []
    for _ in range(600):
        log.pass_time(1.0, written, 0)
        if log.missed:
            break
        history.add(log.sample())
        if len(history.samples) > 1 and (found := forecast(history.samples, retention)) is not None:
            promised.append(log.now + found.seconds)
    if log.missed:
        assert all(at <= log.now + 1e-6 for at in promised)


@given(retention=retentions(), written=st.integers(1, 40), segment=st.integers(1, 50), behind=st.integers(0, 3))
def test_who_keeps_up_is_left_alone(retention, written, segment, behind):
    """A few seconds behind, with a limit that keeps much more than that."""
    assume(retention.bytes is None or retention.bytes > 40 * written * 100)
    log = Log(retention, segment, 100.0, 1.0)
    history = History()
    for second in range(300):
        log.pass_time(1.0, written, written if second >= behind else 0)
        history.add(log.sample())
        found = forecast(history.samples, retention)
        assert found is None or not found.urgent(1.0)
