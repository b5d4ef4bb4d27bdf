"""What is known of queries before they run, on the session of all tests, and in a process of its own."""

import json
from datetime import datetime

import pyspark
import pytest

import millstream as ms
from millstream.settings import MillstreamError, Settings
from millstream.spark.check import check, checked

pytestmark = pytest.mark.system

APPLICATION = """
from datetime import datetime

from pyspark.sql import functions as F

import millstream as ms

app = ms.App("shop")
print("hello from the application")


class Order(ms.Event):
    item: str
    n: int
    at: datetime


orders = app.topic("orders", Order, key="item", event_time="at", lateness="1 minute")
items = app.table("items", source=ms.postgres("ops", table="items"))


@app.view(orders, items, key="item")
def named(orders, items):
    return orders.join(items, "item", "left")


@app.view(orders, key=["item", "minute"])
def per_minute(orders):
    return orders.groupBy("item", ms.tumbling("at", "1 minute").alias("minute")).agg(F.sum("n").alias("n"))
"""
ITEMS = {
    "topic": "items",
    "columns": [{"name": "item", "kind": "string"}, {"name": "price", "kind": "decimal"}],
    "key": ["item"],
}


class Order(ms.Event):
    item: str
    n: int
    at: datetime


def schema(*columns):
    from millstream.spark.rows import TableColumn, TableSchema

    return TableSchema("items", tuple(TableColumn(name, "string") for name in columns), ("item",))


def application():
    app = ms.App("shop")
    orders = app.topic("orders", Order, key="item", event_time="at", lateness="1 minute")
    return app, orders, app.table("items", source=ms.postgres("ops", table="items"))


@pytest.fixture
def settings(tmp_path):
    return Settings(data=tmp_path / "data", cache=Settings.load().cache)


def test_each_query_is_judged_on_its_own(spark, settings):
    from pyspark.sql import functions as F

    app, orders, items = application()

    @app.view(orders, items, key="item")
    def good(orders, items):
        return orders.join(items, "item", "left")

    @app.view(orders, items, key="item")
    def no_column(orders, items):
        return orders.join(items, "item", "left").select("item", "colour")

    @app.view(orders, key=["item", "hour"])
    def no_key(orders):
        return orders.groupBy("item").count()

    @app.stream(orders, to="sorted")
    def unsupported(orders):
        return orders.orderBy("n")

    @app.stream(orders, to="distinct")
    def unbounded(orders):
        return orders.dropDuplicates(["item"])

    @app.view(orders, key="item")
    def no_type(orders):
        return orders.withColumn("took", F.expr("INTERVAL '1' SECOND"))

    @app.alert(orders, to="soon")
    def not_realtime(orders):
        return orders.withColumn("n", F.udf(lambda n: n)("n"))

    @app.alert(orders, to="nameless", latency="micro-batch")
    def without_cause(orders):
        return orders.groupBy("item").count()

    @app.stream(orders, to="broken")
    def fails(orders):
        return orders.where(orders.nix > 1)

    @app.stream(orders, to="grouped", key="item")
    def grouped(orders):
        return orders.groupBy("item").count()

    found = {f.query: f for f in check(app, settings, {"items": schema("item", "price")}, spark)}
    assert {name: f.state for name, f in found.items() if f.sound} == {"good": "none", "grouped": "new"}
    assert found["grouped"].keeps == ("an aggregate",)
    for name, said in {
        "no_column": "`colour`",
        "no_type": "PostgreSQL has no column type",
        "no_key": "the key names 'hour'",
        "unsupported": "sort where they are read",
        "unbounded": "dropDuplicatesWithinWatermark",
        "not_realtime": 'latency="micro-batch"',
        "without_cause": "_origin",
        "fails": "nix",
    }.items():
        assert found[name].state == "refused" and said in found[name].detail, found[name]
    assert not (settings.data).exists()


def test_what_could_not_be_looked_at_is_unknown(spark, settings):
    app, orders, items = application()
    app.view(orders, items, key="item", name="joined")(lambda orders, items: orders.join(items, "item"))
    app.view(items, key="item", name="alone")(lambda items: items.select("item"))
    [joined, alone] = check(app, settings, {"items": "no answer"}, spark)
    assert (joined.state, joined.sound) == ("unknown", False)
    assert joined.detail == alone.detail == "the columns of table 'items' are not known: no answer"
    [joined, alone] = check(app, settings, {"items": schema("item")}, spark)
    assert (joined.state, alone.state) == ("none", "none")


def test_a_checkpoint_of_other_topics_or_of_another_function(spark, settings):
    app, orders, _ = application()
    app.view(orders, key="item", name="newest")(lambda orders: orders)
    app.stream(orders, to="counted", name="counts")(lambda orders: orders.groupBy("item").count())
    app.stream(orders, to="copied", name="copies")(lambda orders: orders)
    for name, topic in (("newest", "older"), ("counts", "orders"), ("copies", "older")):
        folder = settings.checkpoint_root / "shop" / name
        for part in ("commits", "offsets"):
            (folder / part).mkdir(parents=True)
        (folder / "commits" / "0").touch()
        (folder / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{topic}": {{"0": 5}}}}\n')
    other = {"spark": pyspark.__version__, "mode": "update", "operators": [], "version": 1}
    (settings.checkpoint_root / "shop" / "counts" / "state.json").write_text(json.dumps(other))
    found = {f.query: f for f in check(app, settings, {}, spark)}
    assert found["newest"].state == "refused" and "it no longer reads 'older'" in found["newest"].detail
    assert found["counts"].state == "rebuild"
    assert "`millstream groups reset shop.counts --to earliest --execute`" in found["counts"].detail
    assert found["copies"].state == "none"  # without state it is moved


def test_state_on_a_cluster_without_shared_checkpoints(spark, settings, tmp_path):
    from dataclasses import replace

    from pyspark.sql import functions as F

    app, orders, items = application()
    more = app.topic("more", Order, key="item", event_time="at", lateness="1 minute")
    pairs = F.expr("item = other AND then BETWEEN at AND at + INTERVAL 1 HOUR")

    @app.stream(orders, more, to="pairs")
    def joined(orders, more):
        return orders.join(more.selectExpr("item AS other", "at AS then"), pairs)

    @app.stream(orders, items, to="looked_up")  # a table that is grouped first is no state
    def table(orders, items):
        return orders.join(items.groupBy("item").count(), "item")

    remote = replace(settings, spark="spark://cluster:7077")
    found = {f.query: f for f in check(app, remote, {"items": schema("item")}, spark)}
    assert found["joined"].state == "refused"
    assert "keeps state (a join of two streams), which the workers of spark://cluster:7077" in found["joined"].detail
    assert found["table"].state == "none"
    shared = {
        f.query: f.state for f in check(app, replace(remote, checkpoints=tmp_path), {"items": schema("item")}, spark)
    }
    assert shared == {"joined": "new", "table": "none"}


def test_in_a_process_of_its_own(settings, tmp_path):
    (tmp_path / "shop.py").write_text(APPLICATION)
    file = str(tmp_path / "shop.py")
    found = {f.query: f for f in checked(file, settings, {"items": ITEMS})}
    assert {name: f.state for name, f in found.items()} == {"named": "none", "per_minute": "new"}
    assert not settings.data.exists()
    (tmp_path / "shop.py").write_text("import os; os._exit(5)")
    with pytest.raises(MillstreamError, match="ended with exit code 5"):
        checked(file, settings, {})
    (tmp_path / "shop.py").write_text("oops")
    with pytest.raises(MillstreamError, match="oops"):
        checked(file, settings, {})
    assert json.dumps(ITEMS)
