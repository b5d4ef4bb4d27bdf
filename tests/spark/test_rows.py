"""The rows of a table: changes in, the latest row of every key out; what cannot be read concerns its own row."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.settings import MillstreamError, Unreachable
from millstream.spark import rows
from millstream.spark.rows import Rows, TableColumn, TableSchema, convert, table

SCHEMA = TableSchema("planes", (TableColumn("tailnum", "string", False), TableColumn("seats", "long")), ("tailnum",))


def change(op="c", **after):
    return json.dumps({"before": None, "after": after or None, "op": op, "source": {}, "ts_ms": 1}).encode()


def content(found):
    made = [table(part.rows, found.schema) for part in found.parts({})]
    return [row for arrow, _ in made for row in arrow.to_pylist()], {k: v for _, bad in made for k, v in bad.items()}


def test_the_latest_row_of_every_key():
    found = Rows("planes", SCHEMA)
    found.apply(b"1", change("r", tailnum="N1", seats=10))
    found.apply(b"2", change(tailnum="N2"))
    found.apply(b"1", change("u", tailnum="N1", seats=20))
    assert content(found) == ([{"tailnum": "N2", "seats": None}, {"tailnum": "N1", "seats": 20}], {})
    version = found.version
    found.apply(b"1", change("d"))
    found.apply(b"1", None)  # the tombstone after a delete changes nothing more
    assert found.version == version + 1
    assert [r["tailnum"] for r in content(found)[0]] == ["N2"]
    found.apply(None, change("t"))
    assert (len(found), found.size) == (0, 0)


def test_size_is_what_is_held(monkeypatch):
    found = Rows("planes", SCHEMA)
    for _ in range(100):
        found.apply(b"1", change(tailnum="N1", seats=1))
    assert found.size == len(b"1" + json.dumps({"tailnum": "N1", "seats": 1}).encode())
    monkeypatch.setattr(rows, "MAX_BYTES", 1000)
    with pytest.raises(Unreachable, match=r"table 'planes' has more than"):
        for i in range(100):
            found.apply(str(i).encode(), change(tailnum="N1", seats=1))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"{", "expected a Debezium envelope"),
        (b'{"op": 1}', "expected a Debezium envelope"),
        (b'{"op": "u", "after": 7}', "expected an object"),
    ],
)
def test_what_is_no_envelope_concerns_its_row_and_heals(value, why):
    found = Rows("planes", SCHEMA)
    found.apply(b"1", change(tailnum="N1"))
    found.apply(b"2", change(tailnum="N2"))
    found.apply(b"1", value)
    assert [r["tailnum"] for r in content(found)[0]] == ["N2"]
    assert why in found.unread[b"1"]
    found.apply(b"1", change(tailnum="N1"))
    assert len(content(found)[0]) == 2
    assert found.unread == {}
    found.apply(b"3", value)
    found.apply(b"3", None)
    assert found.unread == {}
    assert found.size == sum(len(k) + len(r) for part in found.parts({}) for k, r in part.rows.items())


def test_a_row_without_a_key_is_told():
    found = Rows("planes", SCHEMA)
    found.apply(None, change(tailnum="N1"))
    assert "primary key" in found.unread[b""]


@pytest.mark.parametrize(
    ("kind", "wrong", "right"), [("decimal", "1e25", "1"), ("long", 2**70, 1), ("long", "x", 1), ("date", "soon", 1)]
)
def test_a_value_that_does_not_fit_concerns_its_row_and_heals(kind, wrong, right):
    found = Rows("t", TableSchema("t", (TableColumn("id", "long"), TableColumn("v", kind))))
    found.apply(b"1", change(id=1, v=wrong))
    found.apply(b"2", change(id=2, v=right))
    good, bad = content(found)
    assert [r["id"] for r in good] == [2]
    assert "'v'" in bad[b"1"]
    assert repr(wrong) in bad[b"1"] or kind in bad[b"1"]
    found.apply(b"1", change(id=1, v=right))
    good, bad = content(found)
    assert ([r["id"] for r in good], bad) == ([2, 1], {})


def test_columns_that_cannot_be_read_are_told_until_they_can():
    found = Rows("planes", SCHEMA)
    found.describe(b"{")
    assert "cannot be read" in found.schema_error
    found.describe(b'{"topic": "planes", "columns": [{"name": "a", "kind": "shape"}]}')
    assert "'a' is of unknown kind 'shape'" in found.schema_error
    found.describe(b'{"topic": "planes", "columns": [{"name": "a", "kind": "long"}]}')
    assert found.schema_error == ""
    assert [c.name for c in found.schema.columns] == ["a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["planes", "long", "u", "d"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["op", "after", "before", "topic", "columns", "key", "name", "kind", "seats"]), inner
        )
    ),
    max_leaves=8,
)
DEEP = b'{"op": "u", "after": ' + b"[" * 5000 + b"]" * 5000 + b"}"


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=2), st.sampled_from([DEEP]) | st.binary(max_size=9) | JSON.map(json.dumps)
        )
    )
)
def test_any_message_in_its_topics_is_a_row_or_says_why_not(messages):
    found = Rows("planes", SCHEMA)
    for key, value in messages:
        value = value if isinstance(value, bytes) else value.encode()
        found.apply(key, value)
        found.describe(value)
        found.describe(json.dumps({"topic": "planes", "columns": [{"name": "seats", "kind": "long"}]}).encode())
    content(found)


changes = st.lists(st.tuples(st.integers(0, 40), st.sampled_from("curdt?-"), st.integers(0, 9)), max_size=200)


@settings(deadline=None)
@given(changes)
def test_it_equals_a_dictionary_and_only_changed_chunks_have_new_versions(done):
    old, rows.CHUNK_ROWS = rows.CHUNK_ROWS, 4  # so that chunks are doubled on the way
    try:
        found, model, known, seen = Rows("planes", SCHEMA), {}, {}, {}
        for number, op, seats in done:
            key = b"%d" % number
            if op == "t":
                found.apply(None, change("t"))
                model.clear()
            elif op in "d-?":
                found.apply(key, {"d": change("d"), "-": None, "?": b"?"}[op])
                model.pop(number, None)
            else:
                found.apply(key, change(op, tailnum=str(number), seats=seats))
                model[number] = seats
            for part in found.parts(known):  # what a reader that keeps the unchanged ones sees
                known[part.number], seen[part.number] = part.version, part.rows
        rows_ = [json.loads(r) for part in seen.values() for r in part.values()]
        assert {int(r["tailnum"]): r["seats"] for r in rows_} == model
        assert len(rows_) == len(found) == len(model)
    finally:
        rows.CHUNK_ROWS = old


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
