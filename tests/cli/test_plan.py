"""`millstream plan`: the graph, the processes and the changes, for people and for programs."""

import json

import psycopg
import pytest

from millstream.cli import main
from millstream.postgresql.server import Server
from millstream.run import compare
from millstream.run.compare import Change, Comparison, Place
from millstream.settings import MillstreamError
from millstream.spark import check
from millstream.spark.check import Finding

APPLICATION = """
from datetime import datetime
import millstream as ms

app = ms.App("shop")

class Order(ms.Event):
    item: str
    at: datetime

orders = app.topic("orders", Order, key="item", event_time="at", config=CONFIG)
items = app.table("items", source=ms.postgres("ops", table="items"))

@app.view(orders, key="item")
def sold(orders):
    return orders

@app.alert(orders, to="large_orders")
def large(orders):
    return orders
"""


@pytest.fixture
def application(tmp_path):
    path = tmp_path / "shop.py"
    path.write_text(APPLICATION.replace("CONFIG", "None"))
    return path


def plan(capsys, *arguments):
    code = 0
    try:
        main(["plan", *map(str, arguments)])
    except SystemExit as end:
        code = end.code
    out = capsys.readouterr()
    return code, out.out, out.err


def test_people_see_what_it_is_and_what_would_be_made(capsys, application, tmp_path):
    code, out, _ = plan(capsys, application, "--data", tmp_path / "data", "--no-queries")
    lines = [line.rstrip() for line in out.splitlines()]
    assert code == 1  # for the table that is captured, and not there
    assert "    ! captured table public.items  there is no table public.items yet." in lines
    assert "them, once, with `millstream run FILE --fill ops=tables.sql`" in out
    assert "  not analysed (--no-queries)" in lines
    assert "  ops: public.items  →  change data capture       →  topic items" in lines
    assert "  orders             →  sold (view, every 1 s)    →  table shop.sold" in lines
    assert "  orders             →  large (alert, real time)  →  topic large_orders" in lines
    assert "  read by no query: items" in lines
    assert "  spark          after capture-ops, jars, postgres, topics" in lines
    assert "  log: embedded (not running: what is missing would be created)" in lines
    assert "    ? topic items  2 partitions, cleanup.policy=compact" in lines
    assert "    ? table shop.sold" in lines
    assert not (tmp_path / "data").exists()


def test_programs_get_the_same(capsys, application, tmp_path):
    _, out, _ = plan(capsys, application, "--data", tmp_path / "data", "--json", "--no-queries")
    found = json.loads(out)
    assert found["app"] == "shop" and [q["name"] for q in found["queries"]] == ["sold", "large"]
    assert {"name": "broker", "needs": []} in found["processes"]
    assert {"kind": "table", "name": "shop.sold", "state": "unknown", "detail": ""} in found["changes"]
    assert found["analysis"] == {"findings": [], "problem": "", "wanted": False}
    assert (found["log"]["address"], found["log"]["problem"]) == ("embedded", "not running")


def test_differences_are_shown_and_what_is_as_declared_is_counted(capsys, application, monkeypatch):
    log, store = Place("kafka:9092", False), Place("db:5432/views", False)
    changes = (
        Change("topic", "orders", "differs", "4 partitions, declared 2"),
        Change("topic", "items", "kept"),
        Change("table", "shop.sold", "kept"),
    )
    monkeypatch.setattr(compare, "compare", lambda planned, settings: Comparison(log, store, changes))
    code, out, _ = plan(capsys, application, "--no-queries")
    assert not code
    assert "    ~ topic orders  4 partitions, declared 2; it would be left as it is\n" in out
    assert "    = 1 topic there as declared\n" in out and "    = 1 table there as declared\n" in out


def test_settings_of_the_embedded_log_are_refused_on_kafka(capsys, application):
    application.write_text(APPLICATION.replace("CONFIG", "{'millstream.durability': 'commit'}"))
    code, out, err = plan(capsys, application, "--kafka", "kafka:9092")
    assert (code, out) == (1, "")
    assert "Apache Kafka at kafka:9092, which has no millstream.durability (topic 'orders')" in err


def analysed(capsys, application, monkeypatch, *findings):
    """What `plan` says of queries of which this was found, where everything else is as it should be."""

    def checked(file, settings, columns):
        if isinstance(findings[0], Exception):
            raise findings[0]
        return findings

    kept = Comparison(Place("kafka:9092", False), Place("db:5432/views", False), ())
    monkeypatch.setattr(compare, "compare", lambda planned, settings: kept)
    monkeypatch.setattr(check, "checked", checked)
    return plan(capsys, application)


def test_what_run_would_refuse_is_said_of_each_query(capsys, application, monkeypatch):
    good = [Finding("sold", "fits", keeps=("an aggregate",)), Finding("large", "none")]
    code, out, _ = analysed(capsys, application, monkeypatch, *good)
    assert not code
    assert "  = sold  fits: continues with its state (an aggregate)\n" in out and "  = large  keeps no state\n" in out
    for state, said in {
        "refused": "refused; why",
        "unknown": "not analysed; why",
        "would mix": "would mix: it would not start; why",
        "rebuild": "rebuild: it would not start; why",
    }.items():
        code, out, _ = analysed(capsys, application, monkeypatch, good[0], Finding("large", state, "why"))
        assert code == 1 and f"  ! large  {said}\n" in out
    code, out, _ = analysed(capsys, application, monkeypatch, MillstreamError("Spark needs Java 17; found none."))
    assert code == 1 and "  not analysed: Spark needs Java 17; found none.\n" in out


def test_without_spark_the_line_to_type_is_said(capsys, application, monkeypatch):
    monkeypatch.setattr("millstream.settings.extras._there", lambda module: module != "pyspark")
    code, out, _ = analysed(capsys, application, monkeypatch, Finding("sold", "none"))
    assert code == 1 and "not analysed: the application 'shop' needs pyspark" in out
    assert "pip install 'millstream[spark]'" in out


@pytest.mark.system
def test_queries_over_tables_of_an_embedded_database_that_has_ended(capsys, tmp_path):
    """All of it: the table's columns are looked up in a database that nobody runs, and the queries analysed with them."""
    path = tmp_path / "shop.py"
    path.write_text(
        APPLICATION.replace("CONFIG", "None")
        + """
@app.view(items, key="item")
def cheap(items):
    return items.where("price < 10")

@app.view(items, key="item")
def coloured(items):
    return items.where("colour = 'red'")
"""
    )
    with Server(tmp_path / "data" / "postgres") as server, psycopg.connect(server.database("ops")) as connection:
        connection.execute("CREATE TABLE items (item text PRIMARY KEY, price integer)")
    code, out, _ = plan(capsys, path, "--data", tmp_path / "data", "--json")
    found = json.loads(out)
    assert code == 1
    assert {"kind": "captured table", "name": "ops: public.items", "state": "kept", "detail": ""} in found["changes"]
    states = {f["query"]: (f["state"], f["detail"]) for f in found["analysis"]["findings"]}
    assert states.pop("coloured")[0] == "refused"
    assert states == {"sold": ("none", ""), "large": ("none", ""), "cheap": ("none", "")}
