"""Who has how much before it, from ends and committed offsets."""

from millstream.monitor.catchup import behind, candidates, inputs
from millstream.monitor.lag import Lag
from tests.serve.feed import application

ENDS = {("departures", 0): 10, ("departures", 1): 5, ("arrivals", 0): 7}


def lag(group, partition, committed, topic="departures"):
    return Lag(group, topic, partition, committed, 0, 0)


def test_groups_of_an_application():
    app = application()
    assert inputs(app) == {
        **{f"flights.{query.name}": {"departures"} for query in app.queries.values()},
        "flights.dead_letters": {"departures", "arrivals"},
    }
    assert candidates(app) == ["_flights.very_late"]


def test_a_group_at_the_end_has_nothing_before_it():
    assert behind({"g": {"departures"}}, ENDS, [lag("g", 0, 10), lag("g", 1, 5)]) == {}


def test_what_is_missing_is_counted_also_where_nothing_was_committed():
    assert behind({"g": {"departures"}}, ENDS, [lag("g", 0, 4), lag("other", 1, 5)]) == {"g": 11}
    assert behind({"g": {"departures", "arrivals"}}, ENDS, []) == {"g": 22}


def test_an_empty_topic_needs_no_commit():
    assert behind({"g": {"departures"}}, {("departures", 0): 0}, []) == {}
