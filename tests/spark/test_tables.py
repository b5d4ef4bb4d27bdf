"""Local copies of tables: changes in, rows out; and following a changelog on a log."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from millstream.app.names import SCHEMAS
from millstream.client.admin import ensure_topics
from millstream.client.producer import producer
from millstream.settings import MillstreamError
from millstream.spark import tables
from millstream.spark.tables import Rows, TableColumn, TableCopies, TableSchema, convert
from tests.brokers import fresh

SCHEMA = TableSchema("planes", (TableColumn("tailnum", "string", False), TableColumn("seats", "long")), ("tailnum",))


def change(op="c", **after):
    return json.dumps({"before": None, "after": after or None, "op": op, "source": {}, "ts_ms": 1}).encode()


def test_the_latest_row_of_every_key():
    rows = Rows("planes", SCHEMA)
    rows.apply(b"1", change("r", tailnum="N1", seats=10))
    rows.apply(b"2", change(tailnum="N2"))
    rows.apply(b"1", change("u", tailnum="N1", seats=20))
    assert rows.arrow().to_pylist() == [{"tailnum": "N2", "seats": None}, {"tailnum": "N1", "seats": 20}]
    version = rows.version
    rows.apply(b"1", change("d"))
    rows.apply(b"1", None)  # the tombstone after a delete changes nothing more
    assert rows.version == version + 1
    assert [r["tailnum"] for r in rows.arrow().to_pylist()] == ["N2"]
    rows.apply(None, change("t"))
    assert (len(rows), rows.size) == (0, 0)


def test_size_is_what_is_held(monkeypatch):
    rows = Rows("planes", SCHEMA)
    value = change(tailnum="N1", seats=1)
    for _ in range(100):
        rows.apply(b"1", value)
    assert rows.size == len(value)
    monkeypatch.setattr(tables, "MAX_BYTES", 1000)
    with pytest.raises(MillstreamError, match=r"table 'planes' has more than"):
        for i in range(100):
            rows.apply(str(i).encode(), value)


def test_what_is_no_envelope():
    with pytest.raises(MillstreamError, match=r"'planes': expected a Debezium envelope"):
        Rows("planes", SCHEMA).apply(b"1", b"{")
    with pytest.raises(MillstreamError, match="primary key"):
        Rows("planes", SCHEMA).apply(None, change(tailnum="N1"))
    with pytest.raises(MillstreamError, match="is its capture running"):
        Rows("planes").arrow()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("timestamp", "2013-01-01T05:00:00.5+00:00", datetime(2013, 1, 1, 5, 0, 0, 500000, UTC)),
        ("timestamp", 1_000_000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("date", 1, date(1970, 1, 2)),
        ("decimal", "12.50", Decimal("12.5")),
        ("decimal", "NaN", None),
        ("binary", "AAE=", b"\x00\x01"),
        ("double", "Infinity", float("inf")),
        ("json", '{"a": 1}', '{"a": 1}'),
        ("long", None, None),
    ],
)
def test_values(kind, value, expected):
    assert convert(value, kind, "t", "c") == expected


@pytest.mark.parametrize(("kind", "value"), [("date", "soon"), ("decimal", "x"), ("decimal", "1e30"), ("binary", "?")])
def test_values_that_do_not_fit(kind, value):
    with pytest.raises(MillstreamError, match=f"table 't': {value!r} in column 'c' is no {kind}".replace("?", r"\?")):
        convert(value, kind, "t", "c")


@pytest.fixture
def topic(kafka):
    name = fresh("planes")
    ensure_topics(kafka, [(name, 2, {"cleanup.policy": "compact"}), (SCHEMAS, None, None)])
    return name


def describe(send, topic, *columns):
    value = {
        "topic": topic,
        "columns": [{"name": n, "kind": k, "nullable": True} for n, k in columns],
        "key": [columns[0][0]],
    }
    send.produce(SCHEMAS, key=topic, value=json.dumps(value))


@pytest.mark.system
def test_a_change_before_the_question_is_in_the_answer(kafka, topic):
    copies = TableCopies(kafka, [topic])
    copies.start()
    send = producer(kafka)
    try:
        describe(send, topic, ("tailnum", "string"), ("seats", "long"))
        for round_ in range(30):
            for i in range(5):
                send.produce(topic, key=f"{i}", value=change("u", tailnum=f"N{i}", seats=round_))
            send.flush()
            rows = copies.arrow(topic)
            assert sorted((r["tailnum"], r["seats"]) for r in rows.to_pylist()) == [(f"N{i}", round_) for i in range(5)]
            assert copies.arrow(topic) is rows  # nothing changed, so nothing is made anew
    finally:
        copies.close()


@pytest.mark.system
def test_a_new_column(kafka, topic):
    copies = TableCopies(kafka, [topic])
    copies.start()
    send = producer(kafka)
    try:
        describe(send, topic, ("tailnum", "string"))
        send.produce(topic, key="1", value=change(tailnum="N1"))
        send.flush()
        copies.wait_for_schema(topic)
        assert copies.arrow(topic).to_pylist() == [{"tailnum": "N1"}]
        describe(send, topic, ("tailnum", "string"), ("seats", "long"))
        send.produce(topic, key="2", value=change(tailnum="N2", seats=5))
        send.flush()
        assert sorted(copies.arrow(topic).to_pylist(), key=lambda r: r["tailnum"]) == [
            {"tailnum": "N1", "seats": None},
            {"tailnum": "N2", "seats": 5},
        ]
    finally:
        copies.close()


@pytest.mark.system
def test_a_broken_changelog_is_an_error_not_an_old_answer(kafka, topic):
    copies = TableCopies(kafka, [topic])
    copies.start()
    send = producer(kafka)
    try:
        describe(send, topic, ("tailnum", "string"))
        send.produce(topic, key="1", value=b"oops")
        send.flush()
        with pytest.raises(MillstreamError, match="Debezium envelope"):
            copies.arrow(topic)
    finally:
        copies.close()
