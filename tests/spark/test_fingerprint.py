"""What becomes of a query's state when its function changes."""

import json
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from millstream.app.inputs import Topic
from millstream.app.outputs import View
from millstream.app.query import Query
from millstream.event import Event
from millstream.settings import Kafka, MillstreamError
from millstream.spark.fingerprint import Fingerprint, Operator, compare, keep, noted
from millstream.stores import folder, postgresql
from tests.spark.test_run import SOON, departures, send  # noqa: F401

COUNT = Operator("an aggregate", ("user", "minute"), ("count(1)",), ("string", "bigint"))
NOW = Fingerprint("4", "update", (COUNT,), {"minute": ("windows of 60 s over at",)}, ("Filter: (n > 1)",), (10_000,))


def changed(**parts):
    return Fingerprint(**{f: getattr(NOW, f) for f in NOW.__struct_fields__} | parts)


@pytest.mark.parametrize(
    ("before", "now", "word", "said"),
    [
        (None, NOW, "new", ""),
        (None, Fingerprint("4", "append"), "none", ""),
        (Fingerprint("4", "append"), Fingerprint("4", "update"), "none", ""),
        (NOW, NOW, "fits", ""),
        (changed(lateness=(5,)), NOW, "fits", "lateness"),
        (changed(spark="3"), NOW, "fits", "Spark 3"),
        (
            NOW,
            changed(columns={"minute": ("windows of 300 s over at",)}),
            "would mix",
            "'minute' was windows of 60 s over at and is windows of 300 s over at",
        ),
        (NOW, changed(rows=()), "would mix", "gone: Filter: (n > 1)"),
        (changed(rows=()), NOW, "would mix", "new: Filter: (n > 1)"),
        (NOW, changed(mode="append"), "would mix", "output mode"),
        (
            NOW,
            changed(operators=(Operator("an aggregate", ("user",), ("count(1)",), ("string", "bigint")),)),
            "would mix",
            "by user, minute and is by user",
        ),
        (
            NOW,
            changed(operators=(Operator("an aggregate", COUNT.keys, ("avg(n)",), ("string", "double")),)),
            "rebuild",
            "of count(1) and is of avg(n)",
        ),
        (NOW, changed(operators=()), "rebuild", "state of an aggregate, and now keeps that of nothing"),
    ],
)
def test_what_a_change_means(before, now, word, said):
    verdict = compare(before, now)
    assert (verdict.word, said in verdict.why) == (word, True), verdict
    assert verdict.refused == (word in ("would mix", "rebuild"))


def test_it_is_noted_and_compared_at_the_next_start(tmp_path):
    other = changed(rows=())
    keep(tmp_path / "q", NOW, "view 'q'", "`begin`")
    assert noted(tmp_path / "q") is None  # nothing was finished with it
    keep(tmp_path / "q", other, "view 'q'", "`begin`")
    (tmp_path / "q" / "commits").mkdir()
    (tmp_path / "q" / "commits" / "0").touch()
    assert noted(tmp_path / "q") == other
    with pytest.raises(MillstreamError, match=r"^view 'q': .*would be mixed.*new: Filter.*begin again: `begin`"):
        keep(tmp_path / "q", NOW, "view 'q'", "`begin`")
    assert noted(tmp_path / "q") == other


@pytest.mark.parametrize("content", ["", "{}x", '{"version": 2}', '{"version": 1, "operators": 5}'])
def test_a_note_that_cannot_be_read_is_no_reason_to_go_on(tmp_path, content):
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(MillstreamError, match=r"cannot be read.*Remove it"):
        keep(tmp_path, NOW, "q", "x")


class Click(Event):
    user: str
    n: int
    at: datetime


class Wider(Event):
    user: str
    n: int
    page: str | None
    at: datetime


@pytest.fixture
def click(spark):
    """A function from an event's type to the frame of its topic."""
    from millstream.spark.inputs.topic import open

    def frame(kind=Click, name="clicks", lateness=10):
        topic = Topic(name, kind, key="user", event_time="at", lateness=timedelta(seconds=lateness))
        context = SimpleNamespace(spark=spark, kafka=Kafka("127.0.0.1:1"))
        return open(context, Query("q", (topic,), lambda c: c, View("q", ("user",))), topic)

    return frame


@pytest.mark.system
def test_fingerprints_of_functions(click):
    from pyspark.sql import functions as F

    from millstream.spark.fingerprint import of

    def counted(frame, size="1 minute", by="user", value=None, keep="n > 1"):
        rows = frame.where(keep).withColumn("unused", F.lit(1))
        kept = F.count("*") if value is None else value
        return rows.groupBy(by, F.window("at", size).alias("w")).agg(kept.alias("n"))

    def word(old, new):
        return compare(of(old, "update"), of(new, "update")).word

    base = counted(click())
    found = of(base, "update")
    assert found.columns == {"window": ("windows of 60 s over at",)}
    assert found.rows == ("Filter: (n > CAST(1 AS BIGINT))", "input clicks")
    assert found.lateness == (10_000,)
    assert found.operators[0].values == ("count(1)",)
    # The same state, however it is written, and whatever is done with it.
    assert word(base, counted(click())) == "fits"
    assert word(base, counted(click(Wider))) == "fits"
    assert word(base, counted(click(lateness=60))) == "fits"
    assert word(base, counted(click()).where("n > 5").withColumnRenamed("n", "m")) == "fits"
    split = click().where("n > 1").withColumn("other", F.rand())
    assert (
        word(base, split.groupBy("user", F.window("at", "1 minute").alias("x")).agg(F.count("*").alias("y"))) == "fits"
    )
    two = click().where("n > 1 and n < 9")
    assert word(counted(two), counted(click().where("n < 9").where("n > 1"))) == "fits"
    hopping = click().groupBy(F.window("at", "10 minutes", "5 minutes")).count()
    wider = click(Wider)
    assert word(hopping, wider.groupBy(F.window("at", "10 minutes", "5 minutes")).count()) == "fits"
    assert word(hopping, click().groupBy(F.window("at", "20 minutes", "10 minutes")).count()) == "would mix"
    sparse = click().groupBy(F.window("at", "1 minute", "10 minutes")).count()
    assert of(sparse, "update").columns == {"window": ("windows of 60 s every 600 s over at",)}
    assert word(sparse, click().groupBy(F.window("at", "5 minutes", "10 minutes")).count()) == "would mix"
    words = click().select("user", F.explode(F.split("user", " ")).alias("word")).groupBy("word").count()
    other = click().select("user", F.explode(F.split("user", ",")).alias("word")).groupBy("word").count()
    assert word(words, other) == "would mix"
    # Other state under the same names.
    for other in (
        counted(click(), size="5 minutes"),
        counted(click(), keep="n > 2"),
        counted(click(), value=F.max("n")),
        counted(click().withColumn("user", F.lower("user"))),
        counted(click(name="orders")),
    ):
        assert word(base, other) == "would mix"
    for other in (
        counted(click(), by="n"),
        counted(click(), value=F.avg("n")),
        click(),
        click().dropDuplicatesWithinWatermark(["user"]),
        base.groupBy(F.window(F.window_time("w"), "1 hour")).count(),
    ):
        assert word(base, other) == "rebuild"


@pytest.mark.system
def test_fingerprints_of_joins(click):
    from pyspark.sql import functions as F

    from millstream.spark.fingerprint import of

    def joined(hours=1, kind="inner", columns=("user", "n")):
        other = click(name="orders").selectExpr("user AS buyer", "n AS m", "at AS bought")
        on = F.expr(f"user = buyer AND bought BETWEEN at AND at + INTERVAL {hours} HOUR")
        return of(click().join(other, on, kind).select(*columns), "append")

    assert joined().operators[0].kind == "a join of two streams (inner)"
    assert compare(joined(), joined()).word == "fits"
    assert compare(joined(), joined(hours=2)).word == "would mix"
    assert compare(joined(), joined(kind="left_outer")).word == "rebuild"
    assert compare(joined(), joined(columns=("user", "n", "m"))).word == "rebuild"


@pytest.mark.system
def test_a_window_that_was_changed_is_refused_until_it_is_rebuilt(runner, kafka, departures, until, tmp_path):  # noqa: F811
    from pyspark.sql import functions as F

    from millstream.spark.operators.windows import tumbling
    from tests.spark.test_driver import application

    def view(size):
        def counts(rows):
            return rows.groupBy("origin", tumbling("departed_at", size).alias("w")).agg(F.count("*").alias("n"))

        return Query("counts", (departures,), counts, View("counts", ("origin", "w")), every=SOON)

    app = application()
    send(kafka, departures, [("N1", "JFK", 1.0, 0.1)])
    with runner.running(app, [view("1 minute")]) as facts:
        until(lambda: facts("counts").get("batch", -1) >= 0, "a batch is written")
    noted_ = json.loads((runner.settings.checkpoint_root / app / "counts" / "state.json").read_text())
    assert noted_["columns"] == {"window": ["windows of 60 s over departed_at"]}
    with runner.running(app, [view("5 minutes")], wait=False) as facts:
        until(lambda: facts("counts").get("state") == "failed", "it is refused", 60)
        said = facts("counts")["error"]
    assert "'window' was windows of 60 s over departed_at and is windows of 300 s over departed_at" in said
    assert f"`millstream views rebuild {app}.counts --execute`" in said
    # What the message says to type does the rest; the view then holds windows of the new length alone.
    postgresql.rebuild(runner.settings, app, "counts")
    assert folder.put_aside(runner.settings, app, "counts") is not None
    with runner.running(app, [view("5 minutes")]) as facts:
        until(lambda: facts("counts").get("batch", -1) >= 0, "it is written again")
    [row] = postgresql.read(runner.settings, app, "counts").rows()
    assert row["w_end"] - row["w_start"] == timedelta(minutes=5)
