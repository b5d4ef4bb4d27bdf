"""Tables as frames in streaming queries: planned again, and up to date, in every batch."""

import json

import pytest

from millstream.app.names import SCHEMAS
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.spark.tables import TableCopies, frame_of
from tests.brokers import fresh
from tests.spark.streams import Memory
from tests.spark.test_rows import change

pytestmark = pytest.mark.system


class Planes:
    """A captured table that a test writes."""

    def __init__(self, kafka):
        self.kafka, self.name, self.send = kafka, fresh("planes"), producer(kafka)
        ensure_topics(kafka, [(self.name, 2, {"cleanup.policy": "compact"}), (SCHEMAS, None, None)])
        self.columns(tail="string", seats="long")

    def columns(self, **kinds):
        columns = [{"name": n, "kind": k} for n, k in kinds.items()]
        value = {"topic": self.name, "columns": columns, "key": ["tail"]}
        self.send.produce(SCHEMAS, key=self.name, value=json.dumps(value))
        self.send.flush()

    def put(self, tail, **row):
        self.send.produce(self.name, key=tail, value=change("u", tail=tail, **row) if row else None)
        self.send.flush()


@pytest.fixture
def planes(kafka):
    return Planes(kafka)


@pytest.fixture
def table(spark, kafka, planes, tmp_path):
    copies = TableCopies(kafka, [planes.name], tmp_path / "tables")
    copies.start()
    yield lambda: frame_of(spark, copies[planes.name])
    copies.close()
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize("broadcast", [True, False])
@pytest.mark.parametrize("how", ["inner", "left", "aggregate behind"])
def test_each_batch_has_the_table_as_it_is_when_the_batch_begins(spark, planes, table, how, broadcast):
    stream = Memory(spark)
    threshold = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold if broadcast else "-1")
    name = fresh("q").replace("-", "_")
    joined = stream.frame.withColumnRenamed("value", "tail").join(table(), "tail", "left" if how == "left" else "inner")
    if how == "aggregate behind":
        joined = joined.groupBy("tail", "seats").count()
    mode = "update" if how == "aggregate behind" else "append"
    query = joined.writeStream.format("memory").queryName(name).outputMode(mode).start()
    expected = []
    try:
        for number in range(4):
            planes.put("N1", seats=number)
            planes.put("N2", **({"seats": 7} if number == 2 else {}))  # comes, and is deleted again
            stream.add("N1", "N2")
            query.processAllAvailable()
            expected.append(("N1", number))
            if number == 2:
                expected.append(("N2", 7))
            elif how == "left":
                expected.append(("N2", None))
        found = sorted((r["tail"], r["seats"]) for r in spark.table(name).collect() if r["seats"] is not None)
        assert found == sorted(e for e in expected if e[1] is not None)
        assert spark.table(name).where("seats is null").count() == len([e for e in expected if e[1] is None])
        plan = query._jsq.explainInternal(False)
        assert ("BroadcastHashJoin" if broadcast else "SortMergeJoin") in plan
    finally:
        query.stop()
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)


def test_a_new_column_ends_the_query_which_then_begins_with_it(spark, planes, table):
    stream = Memory(spark)
    planes.put("N1", seats=1)
    query = stream.frame.withColumnRenamed("value", "tail").join(table(), "tail").writeStream.format("noop").start()
    stream.add("N1")
    query.processAllAvailable()
    planes.columns(tail="string", seats="long", year="long")
    stream.add("N1")
    with pytest.raises(Exception, match=r"columns of table .* have changed: 'year' is new"):
        query.processAllAvailable()
    assert table().columns == ["tail", "seats", "year"]
    planes.put("N1", seats=1, year=1999)
    assert [tuple(r) for r in table().collect()] == [("N1", 1, 1999)]


def test_values_of_every_kind_arrive(spark, planes, table):
    kinds = {
        "long": 5,
        "double": 1.5,
        "boolean": True,
        "timestamp": 1_000_000,
        "date": 1,
        "decimal": "1.25",
        "binary": "AAE=",
        "json": {"a": 1},
    }
    planes.columns(tail="string", **{f"{k} of it": k for k in kinds})
    planes.put("N1", **{f"{k} of it": v for k, v in kinds.items()})
    [row] = table().selectExpr(*[f"cast(`{k} of it` as string) as {k}" for k in kinds]).collect()
    assert row.asDict() == {
        "long": "5",
        "double": "1.5",
        "boolean": "true",
        "timestamp": "1970-01-01 00:00:01",
        "date": "1970-01-02",
        "decimal": "1.250000000000000000",
        "binary": "\x00\x01",
        "json": '{"a":1}',
    }
