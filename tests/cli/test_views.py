"""`millstream views` on a real PostgreSQL."""

import json
import os
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow
import pytest

from millstream.cli import main, views
from millstream.postgresql.connect import connect
from millstream.postgresql.server import Server

pytestmark = pytest.mark.system
ID = "00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def conninfo(tmp_path_factory):
    """A store of views with two applications in it, as `millstream.stores.postgresql` makes them."""
    from millstream.settings import Settings
    from millstream.stores import postgresql
    from millstream.stores.store import Claim

    with Server(tmp_path_factory.mktemp("postgres") / "server") as server:
        conninfo = server.database("views")
        hours = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in range(6)]
        rows = pyarrow.table(
            {
                "origin": ["JFK" if hour.hour % 2 else "ALB" for hour in hours],
                "hour_start": hours,
                "flights": range(len(hours)),
            }
        )
        for app, view in (("flights", "delay_by_hour"), ("flights", "by_origin"), ("shop", "delay_by_hour")):
            claim = Claim(app, view, "host:/data", ID)
            kept = postgresql.keep(Settings(postgres=conninfo), view, rows.schema, ["origin", "hour_start"], claim)
            kept.apply(rows, query_id=ID, batch_id=0)
            kept.close()
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
    assert lines[0] == ["app", "view", "rows", "last", "written", "kept", "in"]
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
        ["JFK", "2013-01-01", "05:00:00Z", "5"],
        ["ALB", "2013-01-01", "04:00:00Z", "4"],
    ]
    found = json.loads(run("flights.delay_by_hour", "--json", "--limit", "1"))
    assert found == [{"origin": "JFK", "hour_start": "2013-01-01T05:00:00+00:00", "flights": 5}]


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("5.420000000000000000"), "5.42"),
        (Decimal("1E+3"), "1000"),
        (Decimal("NaN"), "NaN"),
        (1795308532.06, "1795308532.06"),
        (1795308532, "1795308532"),
        (0.30000000000000004, "0.3"),
        (-0.0, "0"),
        (0.00000012345, "1.23e-07"),
        (float("inf"), "inf"),
        (True, True),
        ("5.4200", "5.4200"),
        (None, None),
    ],
)
def test_numbers_are_shown_as_data(value, text):
    assert views._cell(value) == text


@pytest.fixture
def kept(conninfo, tmp_path, monkeypatch):
    """A view of an application whose data folder is here, as a run that has ended leaves it."""
    from millstream.settings import Settings
    from millstream.stores import folder, postgresql
    from millstream.stores.store import Claim

    monkeypatch.setenv("MILLSTREAM_DATA", str(tmp_path))
    where = folder.checkpoint(Settings(data=tmp_path), "kept", "totals")
    where.mkdir(parents=True)
    (where / "metadata").write_text(json.dumps({"id": ID}))
    rows = pyarrow.table({"k": ["a"], "n": [1]})
    settings = Settings(data=tmp_path, postgres=conninfo)
    table = postgresql.keep(settings, "totals", rows.schema, ["k"], Claim.of(Settings(data=tmp_path), "kept", "totals"))
    table.apply(rows, query_id=ID, batch_id=0)
    table.close()
    yield where
    with connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP SCHEMA kept CASCADE; DELETE FROM millstream.checkpoints WHERE app = 'kept'")


def owner(conninfo):
    from millstream.stores import checkpoints

    with connect(conninfo) as connection:
        return checkpoints.owner(connection, "kept", "totals")


def test_a_view_is_given_to_the_next_run_when_it_is_said(run, kept, conninfo):
    shown = run("rebuild", "totals")
    assert "kept.totals: 1 rows, query 'totals' of application 'kept'" in shown
    assert "the next run would empty it" in shown and "Nothing was done: give --execute to do it." in shown
    assert kept.is_dir() and not owner(conninfo).rebuild
    shown = run("rebuild", "kept.totals", "--execute")
    assert "the next run empties it and fills it from the beginning" in shown
    assert owner(conninfo).rebuild and not kept.exists()
    [aside] = (kept.parents[2] / "replaced" / "kept").iterdir()
    assert json.loads((aside / "metadata").read_text()) == {"id": ID}
    assert "(to be rebuilt)" in run("--app", "kept")


def test_a_view_is_dropped_when_it_is_said(run, kept, conninfo):
    assert json.loads(run("drop", "totals", "--json"))["done"] is False
    assert owner(conninfo) is not None
    assert "table and owner: removed" in run("drop", "totals", "--execute")
    assert owner(conninfo) is None and not kept.exists()
    assert "there is no view 'totals'" in run("drop", "totals", "--execute", fails=True)


def test_nothing_is_changed_while_the_application_runs(run, kept, conninfo, tmp_path):
    from millstream.run.lock import Lock

    lock = Lock(tmp_path)
    try:
        for word in ("rebuild", "drop"):
            said = run(word, "totals", "--execute", fails=True)
            assert f"in use by process {os.getpid()}" in said and "End that one" in said
    finally:
        lock.release()
    assert kept.is_dir() and not owner(conninfo).rebuild


def test_the_checkpoint_of_a_view_whose_table_is_gone_is_put_aside(run, kept, conninfo):
    with connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE kept.totals; DELETE FROM millstream.checkpoints WHERE app = 'kept'")
    assert "put aside in" in run("rebuild", "kept.totals", "--execute")
    assert not kept.exists()


def test_the_embedded_store_is_started_for_it(run, tmp_path, monkeypatch):
    monkeypatch.delenv("MILLSTREAM_POSTGRES")
    monkeypatch.setenv("MILLSTREAM_DATA", str(tmp_path))
    assert "no PostgreSQL is known" in run("drop", "totals", fails=True)
    with Server(tmp_path / "postgres") as server, connect(server.database("millstream"), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app; CREATE TABLE app.never (k text)")
    assert "never written by a query" in run("drop", "app.never")
    assert "removed" in run("drop", "app.never", "--execute")
    assert "there is no view" in run("drop", "app.never", fails=True)


def test_words_are_checked(run):
    assert "expected a view's name, `rebuild NAME` or `drop NAME`, got 'rebuild'" in run("rebuild", fails=True)
