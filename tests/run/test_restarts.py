"""Pauses between restarts, by values."""

from millstream.run.restarts import Pace, Restarts

PACE = Pace(first=0.2, most=10, healthy=30, tries=5)


def test_pauses_double_up_to_the_longest():
    restarts = Restarts(PACE)
    restarts.ready(0)
    assert [restarts.ended(t) for t in range(1, 10)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10]
    assert restarts.count == 9


def test_good_health_makes_the_next_pause_short_again():
    restarts = Restarts(PACE)
    restarts.ready(0)
    assert [restarts.ended(1), restarts.ended(2)] == [0.2, 0.4]
    restarts.ready(10)
    assert restarts.ended(39.9) == 0.8
    restarts.ready(50)
    assert restarts.ended(80) == 0.2


def test_what_never_was_ready_is_given_up():
    restarts = Restarts(PACE)
    assert [restarts.ended(t) for t in range(5)] == [0.2, 0.4, 0.8, 1.6, None]


def test_what_was_ready_once_is_never_given_up():
    restarts = Restarts(PACE)
    restarts.ready(0)
    assert all(restarts.ended(1, hopeless=True) is not None for _ in range(2000))


def test_the_hopeless_is_given_up_at_once():
    assert Restarts(PACE).ended(0, hopeless=True) is None


def test_a_scaled_pace_keeps_the_number_of_tries():
    assert Pace().scaled(0.1) == Pace(
        first=0.2 * 0.1, most=1.0, healthy=3.0, tries=5, sweep=0.5, takeover=1.5, slow=0.5
    )
