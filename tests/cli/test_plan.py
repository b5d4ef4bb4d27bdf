"""`millstream plan`: the graph, the processes and the changes, for people and for programs."""

import json

import pytest

from millstream.cli import main
from millstream.run import compare
from millstream.run.compare import Change, Comparison, Place

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
    code, out, _ = plan(capsys, application, "--data", tmp_path / "data")
    lines = [line.rstrip() for line in out.splitlines()]
    assert not code
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
    _, out, _ = plan(capsys, application, "--data", tmp_path / "data", "--json")
    found = json.loads(out)
    assert found["app"] == "shop" and [q["name"] for q in found["queries"]] == ["sold", "large"]
    assert {"name": "broker", "needs": []} in found["processes"]
    assert {"kind": "table", "name": "shop.sold", "state": "unknown", "detail": ""} in found["changes"]
    assert found["log"] == {"address": "embedded", "embedded": True, "problem": "not running"}


def test_differences_are_shown_and_what_is_as_declared_is_counted(capsys, application, monkeypatch):
    log, store = Place("kafka:9092", False), Place("db:5432/views", False)
    changes = (
        Change("topic", "orders", "differs", "4 partitions, declared 2"),
        Change("topic", "items", "kept"),
        Change("table", "shop.sold", "kept"),
    )
    monkeypatch.setattr(compare, "compare", lambda planned, settings: Comparison(log, store, changes))
    _, out, _ = plan(capsys, application)
    assert "    ~ topic orders  4 partitions, declared 2; it would be left as it is\n" in out
    assert "    = 1 topic there as declared\n" in out and "    = 1 table there as declared\n" in out


def test_settings_of_the_embedded_log_are_refused_on_kafka(capsys, application):
    application.write_text(APPLICATION.replace("CONFIG", "{'millstream.durability': 'commit'}"))
    code, out, err = plan(capsys, application, "--kafka", "kafka:9092")
    assert (code, out) == (1, "")
    assert "Apache Kafka at kafka:9092, which has no millstream.durability (topic 'orders')" in err
