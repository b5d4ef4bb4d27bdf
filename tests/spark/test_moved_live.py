"""A query that is moved begins where it was told, and its view holds just that."""

import pytest

from millstream.monitor.lag import group_lag
from millstream.settings import Settings
from millstream.spark import replay
from tests.spark.test_run import departures, rows, send, view  # noqa: F401

pytestmark = pytest.mark.system


def test_a_moved_query_reads_from_there_and_its_view_begins_anew(runner, kafka, views, departures, until, tmp_path):  # noqa: F811
    send(kafka, departures, [(f"N{n}", "EWR", 1.0, n / 100) for n in range(40)])
    query, app = view(departures), "moved"
    count = 'select coalesce(sum(flights), 0) from "moved"."by_hour"'
    with runner.running(app, [query]) as facts:
        until(lambda: facts("by_hour").get("input_rows") == 40, "the query has read everything")
        until(lambda: sum(row[-1] for row in rows(views, app, "by_hour")) == 40, f"{count} is 40")
        before = {(one.topic, one.partition): one.end for one in group_lag(kafka, "moved.by_hour")}
    to = {(departures.name, 0): before[departures.name, 0] - 3, (departures.name, 1): before[departures.name, 1] - 2}
    replay.mark(tmp_path, app, "by_hour", to)
    assert replay.obey(Settings(data=tmp_path), app) == {"by_hour": to}
    with runner.running(app, [query]) as facts:
        until(lambda: sum(row[-1] for row in rows(views, app, "by_hour")) == 5, "the view has what came since")
        send(kafka, departures, [("N1", "EWR", 1.0, 0.5)])
        until(lambda: sum(row[-1] for row in rows(views, app, "by_hour")) == 6, "and goes on")


def test_a_copy_from_the_same_offsets_gives_what_the_first_run_gave(runner, kafka, views, departures, until, tmp_path):  # noqa: F811
    send(kafka, departures, [(f"N{n}", "EWR" if n % 3 else "JFK", 1.0, n / 10) for n in range(60)])
    first, copy, app = view(departures), view(departures, name="copy"), "copied"
    start = {(departures.name, 0): 7, (departures.name, 1): 11}

    def total(name):
        return sum(row[-1] for row in rows(views, app, name))

    replay.mark(tmp_path, app, "by_hour", start)
    replay.obey(Settings(data=tmp_path), app)
    with runner.running(app, [first]):
        until(lambda: total("by_hour") == 60 - 18, "the first run is done")
        send(kafka, departures, [("N1", "EWR", 1.0, 6.5)])
        until(lambda: total("by_hour") == 60 - 17, "and its second batch too")
    replay.mark(tmp_path, app, "copy", start)
    replay.obey(Settings(data=tmp_path), app)
    with runner.running(app, [first, copy]):
        until(lambda: total("copy") == 60 - 17, "the copy has read the same")
    assert rows(views, app, "copy") == rows(views, app, "by_hour")
