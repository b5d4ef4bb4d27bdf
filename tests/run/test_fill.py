"""SQL that fills a database of the embedded PostgreSQL before its tables are captured, once."""

import json

import psycopg
import pytest

import millstream as ms
from millstream.cli import main
from millstream.run.fill import filling
from millstream.run.part import Context
from millstream.run.supervisor import Supervisor
from millstream.settings import MillstreamError, Settings

FILL = "CREATE TABLE items (item text PRIMARY KEY, price integer); INSERT INTO items VALUES ('a', 1), ('b', 2);"
APPLICATION = """
import millstream as ms

app = ms.App("shop")
items = app.table("items", source=ms.postgres("ops", table="items"))
"""


def shop():
    app = ms.App("shop")
    app.table("items", source=ms.postgres("ops", table="items"))
    app.table("users", source=ms.postgres("crm", table="users"))
    return app


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("ops", "expected DATABASE=FILE"),
        ("other=a.sql", "got 'other=a.sql'. There is ops"),
        ("crm=a.sql", "One with an address is filled there"),
        ("ops=/nowhere/a.sql", "/nowhere/a.sql cannot be read"),
    ],
)
def test_mistakes_are_said(word, said):
    with pytest.raises(MillstreamError) as raised:
        filling(shop(), Settings(sources={"crm": "host=b"}), [word])
    assert said in str(raised.value)


def test_a_step_for_each_content(tmp_path):
    path = tmp_path / "tables.sql"
    path.write_text(FILL)
    [step] = filling(shop(), Settings(), [f"ops={path}"])
    assert (step.after, step.before, step.once) == ({"postgres"}, {"capture-ops"}, True)
    path.write_text(FILL + "-- more")
    [other] = filling(shop(), Settings(), [f"ops={path}"])
    assert other.name != step.name


@pytest.mark.system
def test_an_application_whose_tables_are_missing_says_how_to_fill_them_and_runs_then(tmp_path, capsys):
    (tmp_path / "shop.py").write_text(APPLICATION)
    file, data = str(tmp_path / "shop.py"), tmp_path / "data"
    with pytest.raises(SystemExit) as end:
        main(["run", file, "--data", str(data)])
    assert end.value.code == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "the database 'ops' has no table public.items. The embedded PostgreSQL has no tables of its own" in err
    assert "--fill ops=tables.sql" in err
    path = tmp_path / "tables.sql"
    for sql, times in ((FILL, 1), (FILL, 1)):  # again: it is not run a second time
        path.write_text(sql)
        app = shop_of(tmp_path)
        settings = Settings.embedded(data)
        with Supervisor(app, settings, file=file, extra=filling(app, settings, [f"ops={path}"])) as running:
            assert running.wait_ready(120)
            with psycopg.connect(running.settings().source("ops")) as connection:
                assert connection.execute("SELECT count(*) FROM items").fetchone() == (2 * times,)
        assert json.loads((data / "home.json").read_text())["app"] == "shop"


@pytest.mark.system
def test_sql_that_fails_leaves_nothing(tmp_path):
    from millstream.postgresql.server import Server

    path = tmp_path / "tables.sql"
    path.write_text(FILL + "INSERT INTO nowhere VALUES (1);")
    with Server(tmp_path / "postgres") as server:
        address = server.database("ops")
        [step] = filling(shop(), Settings(), [f"ops={path}"])
        context = Context(Settings(data=tmp_path, sources={"ops": address}), lambda text: None, None)
        with pytest.raises(MillstreamError, match=r"tables.sql was not run.*nowhere"):
            step.call(context)
        with psycopg.connect(address) as connection:
            assert connection.execute("SELECT to_regclass('items')").fetchone() == (None,)


def shop_of(folder):
    from millstream.app import load

    return load(str(folder / "shop.py"))
