"""Views: which functions may be one, the newest row of a key, and a view over tables alone."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

import millstream as ms
from millstream.app.names import SCHEMAS
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.settings import MillstreamError
from millstream.spark.outputs.view import check_newest
from tests.brokers import fresh
from tests.spark.test_run import rows


class Click(ms.Event):
    user: str
    at: datetime


def query(*topics, key):
    app = ms.App("app")
    given = [app.topic(name, Click, key=topic_key) for name, topic_key in topics]
    app.view(*given, key=key, name="v")((lambda a: a) if len(given) == 1 else (lambda a, b: a))
    return app.queries["v"]


@pytest.mark.parametrize(
    ("made", "columns", "said"),
    [
        (query(("a", "user"), key="user"), ["user", "_origin"], None),
        (query(("a", "user"), key=["user", "at"]), ["user", "_origin"], None),
        (query(("a", "user"), key="at"), ["at", "_origin"], r"must contain the topic's key \(user\)"),
        (query(("a", None), key="user"), ["user", "_origin"], "which 'a' lacks"),
        (query(("a", "user"), key="user"), ["user"], r"the function dropped it. Keep it: .select\('_origin'"),
        (query(("a", "user"), ("b", "user"), key="user"), ["user", "_origin"], "have no order among them"),
    ],
)
def test_where_the_newest_row_is_well_defined(made, columns, said):
    result = SimpleNamespace(columns=columns)
    if said is None:
        check_newest(made, result, "view 'v'")
        return
    with pytest.raises(MillstreamError, match=f"^view 'v': .*{said}"):
        check_newest(made, result, "view 'v'")


@pytest.mark.system
def test_the_newest_row_of_a_key(spark):
    from millstream.spark.outputs.view import newest
    from millstream.spark.provenance import TYPE

    at = datetime(2026, 1, 1, tzinfo=UTC)
    given = [("ann", 1, 3), ("ann", 2, 7), ("bob", 3, 5), ("ann", 4, 5), ("bob", 6, 9), ("bob", 5, 9)]
    frame = spark.createDataFrame(
        [(user, n, ("t", 0, offset, at)) for user, n, offset in given],
        f"user string, n int, _origin {TYPE.simpleString()}",
    )
    found = newest(frame, ("user",), ties=True)
    assert found.columns == ["user", "n"]
    for part in (found, newest(frame.orderBy("n"), ("user",), ties=True)):
        assert sorted((r.user, r.n) for r in part.collect()) == [("ann", 2), ("bob", 6)]


@pytest.mark.system
def test_a_view_over_tables_alone_follows_updates_and_deletes(runner, kafka, views, until):
    names = {name: fresh(name) for name in ("users", "cities")}
    ensure_topics(kafka, [*((n, 2, {"cleanup.policy": "compact"}) for n in names.values()), (SCHEMAS, None, None)])
    client = producer(kafka)
    for name, other in (("users", "city"), ("cities", "country")):
        columns = [{"name": c, "kind": "string", "nullable": c == other} for c in (name, other)]
        value = {"topic": names[name], "columns": columns, "key": [name]}
        client.produce(SCHEMAS, key=names[name], value=json.dumps(value))

    def change(table, key, other):
        after = {table: key, {"users": "city", "cities": "country"}[table]: other}
        value = None if other is None else json.dumps({"op": "u", "after": after})
        client.produce(names[table], key=json.dumps({table: key}), value=value)
        client.flush()

    app = ms.App(fresh("app").replace("-", "_"))
    users = app.table(names["users"], source=ms.postgres("ops", table="users"))
    cities = app.table(names["cities"], source=ms.postgres("ops", table="cities"))

    @app.view(users, cities, key="country", every="200 ms")
    def people(users, cities):
        return users.join(cities, users.city == cities.cities, "left").groupBy("country").count()

    def shown():
        try:
            return dict(rows(views, app.name, "people"))
        except Exception:
            return None

    for user, city in (("ann", "Oslo"), ("bob", "Rome"), ("eve", "Bergen")):
        change("users", user, city)
    for city, country in (("Oslo", "Norway"), ("Bergen", "Norway"), ("Rome", "Italy")):
        change("cities", city, country)
    with runner.running(app.name, list(app.queries.values())) as facts:
        until(lambda: shown() == {"Norway": 2, "Italy": 1}, "the first rows", 90)
        change("users", "bob", "Oslo")
        until(lambda: shown() == {"Norway": 3}, "a row that vanishes is removed", 60)
        change("users", "zoe", "Nowhere")
        until(lambda: shown() == {"Norway": 3, None: 1}, "a key without a value", 60)
        change("users", "eve", None)
        change("users", "zoe", None)
        until(lambda: shown() == {"Norway": 2}, "deleted rows", 60)
        assert facts("people")["error"] is None
    change("users", "ann", "Rome")
    with runner.running(app.name, list(app.queries.values())):
        until(lambda: shown() == {"Norway": 1, "Italy": 1}, "what changed meanwhile", 60)
