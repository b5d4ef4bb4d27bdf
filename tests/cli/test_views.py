"""`millstream views` on a real PostgreSQL."""

import json
from datetime import UTC, datetime

import pytest

from millstream.cli import main
from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def conninfo(tmp_path_factory):
    """A store of views with two applications in it, as `millstream.postgresql.upsert` makes them."""
    import pyarrow as pa

    from millstream.postgresql import upsert

    with Server(tmp_path_factory.mktemp("postgres") / "server") as server:
        conninfo = server.database("views")
        hours = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in range(6)]
        rows = pa.table(
            {"origin": ["JFK", "EWR"] * (len(hours) // 2), "hour_start": hours, "flights": range(len(hours))}
        )
        with connect(conninfo) as connection:
            for app, view in (("flights", "delay_by_hour"), ("flights", "by_origin"), ("shop", "delay_by_hour")):
                target = upsert.Target.of(app, view, rows.schema, ["origin", "hour_start"])
                upsert.ensure(connection, target)
                connection.commit()
                batch = {"app": app, "query": view, "query_id": "00000000-0000-0000-0000-000000000001", "batch_id": 0}
                upsert.apply(connection, target, rows, **batch)
        yield conninfo


@pytest.fixture
def run(conninfo, capsys, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_POSTGRES", conninfo)

    def run(*arguments, fails=False):
        with pytest.raises(SystemExit) as end:
            main(["views", *arguments])
        printed = capsys.readouterr()
        assert (end.value.code or 0) == (1 if fails else 0), printed.err
        return printed.err if fails else printed.out

    return run


def test_the_views_are_listed(run):
    lines = [line.split() for line in run().splitlines()]
    assert lines[0] == ["app", "view", "rows", "last", "written"]
    assert [line[:3] for line in lines[1:]] == [
        ["flights", "by_origin", "6"],
        ["flights", "delay_by_hour", "6"],
        ["shop", "delay_by_hour", "6"],
    ]
    assert [v["app"] for v in json.loads(run("--app", "shop", "--json"))] == ["shop"]


def test_rows_are_shown_newest_first(run):
    lines = [line.split() for line in run("by_origin", "--limit", "2").splitlines()]
    assert lines == [
        ["origin", "hour_start", "flights"],
        ["EWR", "2013-01-01", "05:00:00Z", "5"],
        ["JFK", "2013-01-01", "04:00:00Z", "4"],
    ]
    found = json.loads(run("flights.delay_by_hour", "--json", "--limit", "1"))
    assert found == [{"origin": "EWR", "hour_start": "2013-01-01T05:00:00+00:00", "flights": 5}]


def test_a_view_must_be_one(run):
    assert "several applications have a view 'delay_by_hour': name one of flights.delay_by_hour, shop" in run(
        "delay_by_hour", fails=True
    )
    assert len(run("delay_by_hour", "--app", "shop").splitlines()) == 7
    assert "there is no view 'nope'; there are flights.by_origin" in run("nope", fails=True)


def test_an_empty_database_has_none(run, conninfo, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_POSTGRES", conninfo.replace("dbname=views", "dbname=postgres"))
    assert run() == "no views yet\n"
    assert "there are none yet" in run("nope", fails=True)


def test_a_database_that_does_not_answer_is_named(run, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_POSTGRES", "host=127.0.0.1 port=1 user=x password=hunter2")
    message = run(fails=True)
    assert message.startswith("error: ")
    assert "hunter2" not in message
