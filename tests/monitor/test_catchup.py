"""Who has how much before it, from ends and committed offsets."""

from millstream.monitor.catchup import behind, inputs
from millstream.monitor.lag import Lag

ENDS = {("departures", 0): 10, ("departures", 1): 5, ("arrivals", 0): 7}


def lag(group, partition, committed, topic="departures"):
    return Lag(group, topic, partition, committed, 0, 0)


def test_groups_of_an_application():
    wanted = inputs("flights", {"delay_by_hour": ["departures"], "landings": ["arrivals"]}, ["departures", "arrivals"])
    assert wanted == {
        "flights.delay_by_hour": {"departures"},
        "flights.landings": {"arrivals"},
        "flights.dead_letters": {"departures", "arrivals"},
    }


def test_a_group_at_the_end_has_nothing_before_it():
    assert behind({"g": {"departures"}}, ENDS, [lag("g", 0, 10), lag("g", 1, 5)]) == {}


def test_what_is_missing_is_counted_also_where_nothing_was_committed():
    assert behind({"g": {"departures"}}, ENDS, [lag("g", 0, 4), lag("other", 1, 5)]) == {"g": 11}
    assert behind({"g": {"departures", "arrivals"}}, ENDS, []) == {"g": 22}


def test_an_empty_topic_needs_no_commit():
    assert behind({"g": {"departures"}}, {("departures", 0): 0}, []) == {}
