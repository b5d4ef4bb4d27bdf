"""Reading views from a real PostgreSQL: newest rows, bounds, only when a batch changed them, and what cannot be read."""

import threading

import psycopg
import pytest

from millstream.postgresql.server import Server
from millstream.serve import views
from millstream.serve.activity import Activity
from millstream.serve.views import Views
from millstream.stores import checkpoints
from tests.brokers import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def conninfo(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("views")) as server:
        yield server.database("millstream")


@pytest.fixture
def database(conninfo):
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(
            "DROP SCHEMA IF EXISTS app CASCADE; DROP SCHEMA IF EXISTS millstream CASCADE; CREATE SCHEMA app"
        )
        yield connection


@pytest.fixture
def reader(conninfo, monkeypatch):
    monkeypatch.setattr(views, "UNMARKED_S", 0.2)
    stop = threading.Event()
    activity = Activity(stop)
    activity.watch(+1)
    reader = Views("app", conninfo, {"v": ["k", "hour"]}, activity)
    thread = threading.Thread(target=reader.run)
    thread.start()
    yield reader
    stop.set()
    activity.wake()
    thread.join(10)
    assert not thread.is_alive()


def create(database, rows):
    with database.transaction():
        checkpoints.ensure_table(database)
        database.execute(
            "CREATE TABLE app.v (k text, hour_start timestamptz, hour_end timestamptz, n bigint, PRIMARY KEY (k, hour_start))"
        )
        database.execute(
            "INSERT INTO app.v SELECT 'k' || (i %% 3), t, t + interval '1 hour', i FROM generate_series(1, %s) AS i,"
            " LATERAL (SELECT timestamptz '2013-01-01 00:00+00' + i / 3 * interval '1 hour' AS t) AS at",
            (rows,),
        )
    mark(database, 1)


def mark(database, batch):
    database.execute(
        "INSERT INTO millstream.checkpoints (app, view, query, query_id, batch_id)"
        " VALUES ('app', 'v', 'q', gen_random_uuid(), %s)"
        " ON CONFLICT (app, view) DO UPDATE SET batch_id = excluded.batch_id, at = excluded.at",
        (batch,),
    )


def test_a_view_that_is_not_there_yet_appears(database, reader):
    wait_until(lambda: reader.connection.up, "the database answers")
    assert reader.states["v"].columns == []
    create(database, 6)
    state = wait_until(lambda: reader.states["v"].rows and reader.states["v"], "the rows are there")
    assert [c.name for c in state.columns if c.key] == ["k", "hour_start", "hour_end"]
    assert state.rows[0] == ["k0", "2013-01-01T02:00:00+00:00", "2013-01-01T03:00:00+00:00", 6]
    assert (state.total, state.more) == (6, False)
    assert len(state.chart.series) == 3


def test_rows_and_their_count_are_bounded(database, reader):
    create(database, views.MAX_COUNTED + 500)
    state = wait_until(lambda: reader.states["v"].rows and reader.states["v"], "the rows are there")
    assert (len(state.rows), state.total, state.more) == (views.MAX_SHOWN, views.MAX_COUNTED, True)
    assert state.rows[0][1] > state.rows[-1][1]


def test_rows_are_read_again_only_when_a_batch_changed_them(database, reader):
    create(database, 3)
    wait_until(lambda: reader.states["v"].batch == 1, "the first batch")
    read = reader.states["v"]
    database.execute("UPDATE app.v SET n = 77")
    answered = reader.connection.since
    wait_until(lambda: reader.connection.since > answered, "another look at the checkpoints")
    wait_until(lambda: reader.connection.since > answered + 1, "and another")
    assert reader.states["v"] is read
    mark(database, 2)
    state = wait_until(lambda: reader.states["v"].batch == 2 and reader.states["v"], "the second batch")
    assert {row[3] for row in state.rows} == {77}


def test_a_view_that_cannot_be_read_keeps_its_rows_and_says_why(database, reader, conninfo, monkeypatch):
    monkeypatch.setattr(views, "FAILED_S", 0.2)
    create(database, 3)
    wait_until(lambda: reader.states["v"].batch == 1, "the first batch")
    with psycopg.connect(conninfo) as other:
        other.execute("LOCK TABLE app.v IN ACCESS EXCLUSIVE MODE")
        mark(database, 2)
        state = wait_until(lambda: reader.states["v"].error and reader.states["v"], "the view's error")
        assert "lock timeout" in state.error
        assert len(state.rows) == 3
        assert reader.connection.up
    state = wait_until(lambda: not reader.states["v"].error and reader.states["v"], "it can be read again")
    assert state.batch == 2


def test_nothing_can_be_written(database, reader, conninfo):
    create(database, 1)
    wait_until(lambda: reader.states["v"].rows, "the rows are there")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        reader._connection.execute("DELETE FROM app.v")
